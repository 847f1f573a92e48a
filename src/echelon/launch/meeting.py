"""How the processes that form one group meet, and how each learns how the others ended.

Process 0 listens; the others call it, say who they are and wait. It says when to begin, with which ranks, and from
then on the connection is there to notice what happens to the others: a process that fails says so, one that dies
closes it. What goes over it is a JSON object a line. Nobody who cannot say hello gets further than that:

    process 0   challenge   a nonce
    the other   hello       who it is, a nonce of its own, and an HMAC of all that under the secret
    process 0   welcome     an HMAC in turn, which shows that it knows the secret too

The secret itself is never sent. What follows is not authenticated message by message, as it is between agents
(agent/wire.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from echelon.errors import EchelonError, RefusedError, StoppedError, TrainingError, UserError
from echelon.launch.link import Link, Message, call
from echelon.launch.local import START_S
from echelon.launch.machine import own_versions
from echelon.launch.site import Address
from echelon.monitor.heartbeat import Pulse, find_hung
from echelon.runfolder import to_json
from echelon.untrusted import printable

SECRET_VARIABLE = "ECHELON_SECRET"
_FEWEST_CHARACTERS = 16
"""Of a secret that people choose: an eavesdropper can try shorter ones on a hello that was recorded."""
JOIN_S = 600.0
"""How long processes wait for each other to be started."""
_SOON_S = 2.0
"""How long one waits for another without a word."""
_HELLO_S = 10.0
"""How long a caller may take to say who it is."""
_LAST_WORD_S = 1.0
"""How long a refusal may be under way."""
_REPORT_S = 60.0
"""How long the processes' ends may lie apart."""
_LEAVE_S = 5.0
"""How long process 0 may take to leave after it has told the others how it ended."""
_MAX_STRANGERS = 100
_POLL_S = 0.2
_HELLO_BYTES, _MESSAGE_BYTES = 4096, 2**20
_TEXT_CHARACTERS = 20_000
_NAME_CHARACTERS = 300
_NONCE_BYTES = 32
_MOST_WORKERS = 2**16

Tell = Callable[[str], None]


def _versions() -> str:
    own = own_versions()
    return f"echelon {own.echelon} ({own.source}), torch {own.torch}, Python {own.python}"


@dataclass(frozen=True)
class Hello:
    """What a process says of itself; all but its rank, its host and its workers must be as process 0 has it."""

    rank: int
    size: int
    workers: int
    recipe: str
    """Digest of the recipe, with what --set changed."""
    host: str = field(default_factory=lambda: printable(socket.gethostname()))
    versions: str = field(default_factory=_versions)


@dataclass(frozen=True)
class _Handshake:
    """The nonces of a connection and what its caller said, which the proofs of both ends are about."""

    secret: str
    challenge: str
    answer: str
    hello: Hello

    def prove(self, purpose: str) -> str:
        content = to_json([purpose, self.challenge, self.answer, asdict(self.hello)])
        return hmac.new(self.secret.encode(), content.encode(), hashlib.sha256).hexdigest()

    def is_proved(self, purpose: str, proof: object) -> bool:
        return isinstance(proof, str) and hmac.compare_digest(proof.encode(), self.prove(purpose).encode())


@dataclass(frozen=True)
class Report:
    """How the workers of one process ended: finished, interrupted, or with a failure."""

    is_finished: bool = False
    failure: str = ""
    failed_at: float = math.inf
    """Seconds since the epoch; 0 where they died without a word, which is then what made the others fail."""
    exit_status: int = 1
    """Of `echelon train`, where this failure is the first."""


@dataclass(frozen=True)
class Verdict:
    """How the whole group ended, the same everywhere: finished or interrupted with a result, or the first failure."""

    result: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    exit_status: int = 1


class _Stranger(NamedTuple):
    """A caller that has not said hello yet."""

    since: float
    challenge: str


class Master:
    """Process 0's side. `noun` is what the user calls the processes: node or process."""

    def __init__(self, listener: socket.socket, own: Hello, noun: str, secret: str = "") -> None:
        self.own = own
        self._secret = secret
        self._noun = noun
        self._nouns = f"{noun}es" if noun.endswith("s") else f"{noun}s"
        self._listener = listener
        listener.setblocking(False)  # a caller may have gone before it is accepted
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._strangers: dict[Link, _Stranger] = {}
        self._links: dict[int, Link] = {}
        self._reports: dict[int, Report] = {}
        self._heard: dict[int, float] = {}
        self._pulses: dict[int, dict[int, Pulse]] = {}
        self.hellos: dict[int, Hello] = {0: own}
        self.is_troubled = False

    def gather(self, tell: Tell, limit_s: float = JOIN_S) -> None:
        """Wait until all have called; UserError where some do not come in time."""
        started, has_told = time.monotonic(), False
        while missing := self._missing():
            waited_s = time.monotonic() - started
            if waited_s > limit_s:
                raise UserError(
                    f"{missing} did not come within {limit_s:.0f} seconds; start the same command on every host, "
                    "and see that they reach this one"
                )
            if waited_s > _SOON_S and not has_told:
                has_told = True
                tell(f"waiting for {missing} ...")
            self._pump(_POLL_S, tell)
        self._stop_listening()

    def _missing(self) -> str:
        ranks = [str(rank) for rank in range(self.own.size) if rank not in self.hellos]
        noun = self._noun if len(ranks) == 1 else self._nouns
        return f"{noun} {', '.join(ranks)}" if ranks else ""

    def ask_all(self, kind: str, **values: Any) -> dict[int, Message]:
        """Send all the others a message and wait for an answer of each. Raises what one of them failed with."""
        self.tell_all(kind, **values)
        answers: dict[int, Message] = {}
        while len(answers) < len(self._links):
            self._pump(_POLL_S)
            for rank, link in self._links.items():
                if rank not in answers and link.inbox:
                    answers[rank] = link.inbox.popleft()
                    if answers[rank]["kind"] == "failed":
                        raise UserError(f"{self._name(rank)}: {_text(answers[rank], 'failure')}")
                elif rank not in answers and link.is_closed:
                    raise TrainingError(f"{self._name(rank)} has gone before training began")
        return answers

    def tell_all(self, kind: str, **values: Any) -> None:
        for rank in self._links:
            self.tell(rank, kind, **values)

    def tell(self, rank: int, kind: str, **values: Any) -> None:
        self._links[rank].send(kind, **values)

    def refuse(self, error: EchelonError, wait_s: float) -> None:
        """Tell the others why nothing will be done, also those that call within `wait_s`."""
        deadline = time.monotonic() + wait_s
        self._pump(0.0)
        while self._missing() and self._is_listening and time.monotonic() < deadline:
            self._pump(_POLL_S)
        text = str(error)[:_TEXT_CHARACTERS]
        self.tell_all("refused", failure=text, exit_status=error.exit_status)
        self._stop_listening()

    def poll(self, silence_s: float = math.inf) -> None:
        """See whether others are in trouble, or silent for `silence_s`; then `is_troubled`, and everybody is told."""
        self._pump(0.0)
        now = time.monotonic()
        for rank, link in self._links.items():
            while link.inbox:
                self._heard[rank] = now
                self._hear(rank, link.inbox.popleft())
            silent_s = now - self._heard.setdefault(rank, now)
            if rank not in self._reports and (link.is_closed or silent_s > silence_s):
                how = "has gone" if link.is_closed else f"has been silent for {silent_s:.0f} seconds,"
                self._reports[rank] = Report(
                    failure=f"{self._name(rank)} {how} without a word", failed_at=0.0
                )
        if any(report.failure for report in self._reports.values()):
            self._spread_trouble()

    def _hear(self, rank: int, message: Message) -> None:
        if message["kind"] == "report":
            self._reports[rank] = _report_of(message)
        elif message["kind"] == "pulses":
            self._pulses[rank] = _pulses_of(message)

    def share(self, own: dict[int, Pulse], hang_s: float) -> int | None:
        """Tell the others that we are here, and find who holds all up; the rank of the worker where it is ours."""
        self.tell_all("alive")
        pulses = {rank: pulse for theirs in (own, *self._pulses.values()) for rank, pulse in theirs.items()}
        size = sum(hello.workers for hello in self.hellos.values())
        hung = find_hung(pulses, hang_s, START_S, is_whole_group=len(pulses) == size) if hang_s else None
        for rank, theirs in self._pulses.items():
            if hung in theirs:
                self.tell(rank, "blame", worker=hung)
        return hung if hung in own else None

    def _spread_trouble(self) -> None:
        if not self.is_troubled:
            self.is_troubled = True
            self.tell_all("trouble")

    def conclude(self, report: Report, summarise: Callable[[bool], dict[str, Any]]) -> Verdict:
        """Wait for everybody's report and tell everybody how it ended; `summarise` gets whether all finished."""
        self._reports[0] = report
        if report.failure:
            self._spread_trouble()
        deadline = time.monotonic() + _REPORT_S
        while len(self._reports) < self.own.size and time.monotonic() < deadline:
            self._pump(_POLL_S)
            self.poll()
        for rank in range(self.own.size):
            silent = Report(failure=f"{self._name(rank)} does not say how it ended")
            self._reports.setdefault(rank, silent)
        verdict = self._judge(summarise)
        self.tell_all("verdict", **asdict(verdict))
        return verdict

    def _judge(self, summarise: Callable[[bool], dict[str, Any]]) -> Verdict:
        failures = [report for report in self._reports.values() if report.failure]
        if failures:
            first = min(failures, key=lambda report: report.failed_at)
            return Verdict(failure=first.failure, exit_status=first.exit_status)
        return Verdict(result=summarise(all(report.is_finished for report in self._reports.values())))

    def _pump(self, timeout_s: float, tell: Tell = lambda _: None) -> None:
        """Let in who calls and read what has come."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data, tell)
        now = time.monotonic()
        for link, stranger in list(self._strangers.items()):
            if now - stranger.since > _HELLO_S:
                self._drop(link)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the caller has gone again
            connection, _ = self._listener.accept()
            link = Link(connection, _HELLO_BYTES)
            if len(self._strangers) == _MAX_STRANGERS:
                self._drop(next(iter(self._strangers)))
            self._strangers[link] = _Stranger(time.monotonic(), secrets.token_hex(_NONCE_BYTES))
            self._selector.register(link, selectors.EVENT_READ, link)
            link.send("challenge", nonce=self._strangers[link].challenge)

    def _read(self, link: Link, tell: Tell) -> None:
        link.read()
        if link in self._strangers and link.inbox:
            self._admit(link, link.inbox.popleft(), tell)
        if link.is_closed:
            self._drop(link)

    def _admit(self, link: Link, message: Message, tell: Tell) -> None:
        challenge = self._strangers.pop(link).challenge
        hello, nonce = _hello_of(message), message.get("nonce")
        if hello is None or not isinstance(nonce, str):
            link.close()
            return
        handshake = _Handshake(self._secret, challenge, nonce, hello)
        if not handshake.is_proved("caller", message.get("proof")):
            link.close()
            return
        link.send("welcome", proof=handshake.prove("called"))
        problem = self._problem_with(hello)
        if problem:
            tell(f"{self._noun} {hello.rank} on {hello.host} was turned away: {problem}")
            link.send("refused", failure=problem, exit_status=UserError.exit_status)
            link.close()
            return
        link.limit_bytes = _MESSAGE_BYTES
        self._links[hello.rank] = link
        self.hellos[hello.rank] = hello

    def _problem_with(self, hello: Hello) -> str:
        """Why this process cannot take part; nothing where it can."""
        if hello.size != self.own.size:
            return f"it counts {hello.size} {self._nouns}, {self._noun} 0 counts {self.own.size}"
        if not 0 < hello.rank < self.own.size or not 0 < hello.workers <= _MOST_WORKERS:
            return f"there is no {self._noun} {hello.rank} of {self.own.size} with {hello.workers} workers"
        if hello.rank in self.hellos and not self._links[hello.rank].is_closed:
            other = self.hellos[hello.rank]
            return f"{other.host} is {self._noun} {hello.rank} already"
        if hello.versions != self.own.versions:
            return f"it has {hello.versions}, {self._noun} 0 has {self.own.versions}"
        if hello.recipe != self.own.recipe:
            return f"its recipe, or its --set, differs from that of {self._noun} 0"
        return ""

    def _drop(self, link: Link) -> None:
        """Have nothing more to do with a connection."""
        self._strangers.pop(link, None)
        self._selector.unregister(link)
        link.release()

    @property
    def _is_listening(self) -> bool:
        return self._listener.fileno() >= 0

    def _stop_listening(self) -> None:
        if self._is_listening:
            self._selector.unregister(self._listener)
            self._listener.close()
        for link in list(self._strangers):
            self._drop(link)

    def _name(self, rank: int) -> str:
        return f"{self._noun} {rank} on {self.hellos[rank].host}"


@dataclass(frozen=True)
class Invitation:
    """Where process 0 listens, and the secret by which it and the others know each other."""

    address: Address
    secret: str = ""

    @property
    def fingerprint(self) -> str:
        """Tells invitations apart without telling the secret."""
        return hashlib.sha256(b"invitation " + self.secret.encode()).hexdigest()


def read_secret(file: Path | None, environ: Mapping[str, str]) -> str:
    """The secret of processes that share no folder: what `file` holds, or ECHELON_SECRET; empty without both."""
    try:
        secret = (environ.get(SECRET_VARIABLE, "") if file is None else file.read_text()).strip()
        secret.encode()
    except (OSError, UnicodeError) as error:
        raise UserError(f"{file or SECRET_VARIABLE}: the secret cannot be read: {error}") from None
    if len(secret) < _FEWEST_CHARACTERS and (secret or file is not None):
        raise UserError(
            f"{file or SECRET_VARIABLE}: a secret has {_FEWEST_CHARACTERS} characters or more; "
            "`openssl rand -hex 32` makes one"
        )
    return secret


class Member:
    """The side of every process but 0."""

    def __init__(self, link: Link, noun: str) -> None:
        self._link = link
        self._noun = noun
        self._heard = 0.0
        self._blamed: int | None = None
        self.is_troubled = False

    def hear(self, kind: str) -> Message:
        """The next message from process 0, which must be of this kind; RefusedError where it does not begin."""
        message = self._link.wait(math.inf)
        if message is None:
            raise TrainingError(f"{self._noun} 0 has gone before training began")
        if message["kind"] == "refused":
            self._let_it_speak_first()
            raise RefusedError(_text(message, "failure"), _status(message))
        if message["kind"] != kind:
            raise TrainingError(f"{message['kind']!r} was not expected here, but {kind!r}; this is a bug")
        return message

    def say(self, kind: str, **values: Any) -> None:
        self._link.send(kind, **values)

    def poll(self, silence_s: float = math.inf) -> None:
        """See whether others are in trouble, or process 0 silent for `silence_s`; then `is_troubled`."""
        self._link.read()
        now = time.monotonic()
        for message in list(self._link.inbox):
            self._heard = now
            if message["kind"] == "blame" and isinstance(message.get("worker"), int):
                self._blamed = message["worker"]
            if message["kind"] in ("alive", "blame"):
                self._link.inbox.remove(message)
            elif message["kind"] == "trouble":
                self.is_troubled = True
        self._heard = self._heard or now
        if self._link.is_closed or now - self._heard > silence_s:
            self.is_troubled = True

    def share(self, own: dict[int, Pulse], _hang_s: float) -> int | None:
        """Tell process 0 how our workers get on; the rank of the one that it takes for the one that hangs."""
        pulses = [[rank, p.beats, p.turns, p.step, p.silent_s] for rank, p in own.items()]
        self._link.send("pulses", pulses=pulses)
        return self._blamed

    def conclude(self, report: Report) -> Verdict:
        """Say how our workers ended and hear how all did; returns once process 0 has left."""
        self._link.send("report", **asdict(report))
        verdict = None
        while verdict is None and (message := self._link.wait(2 * _REPORT_S)) is not None:
            if message["kind"] == "verdict":
                verdict = _verdict_of(message)
        if verdict is None:
            return Verdict(failure=self._explain_loss(report), exit_status=report.exit_status)
        self._let_it_speak_first()
        return verdict

    def _explain_loss(self, report: Report) -> str:
        """What to say where process 0 does not."""
        gone = f"{self._noun} 0 has gone without a word"
        if not report.failure:
            return gone
        return report.failure if report.failed_at == 0.0 else f"{gone}; then {report.failure}"

    def _let_it_speak_first(self) -> None:
        """Wait until process 0 has left: a site's launcher that sees one of its processes fail kills the others."""
        self._link.wait(_LEAVE_S)


def join(
    find: Callable[[], Invitation | None], hello: Hello, noun: str, tell: Tell, limit_s: float
) -> Member:
    """Call process 0 until it answers, which may take as long as it needs to prepare.

    UserError where nobody is there within `limit_s`.
    """
    started, has_told = time.monotonic(), False
    while True:
        invitation = find()
        link = call(invitation.address) if invitation else None
        if link is not None and invitation is not None:

            def hear(link: Link = link, invitation: Invitation = invitation) -> Message | None:
                while not link.inbox and not link.is_closed and find() == invitation:
                    link.await_message(_POLL_S)
                return link.wait(
                    _LAST_WORD_S
                )  # the invitation may be gone because process 0 has just refused

            if _is_welcome(link, hello, invitation.secret, hear) and (first := hear()):
                link.inbox.appendleft(first)
                return Member(link, noun)
            link.release()
        waited_s = time.monotonic() - started
        where = f" at {invitation.address}" if invitation else ""
        if waited_s > limit_s:
            raise UserError(f"{noun} 0 did not answer{where} within {limit_s:.0f} seconds")
        if waited_s > _SOON_S and not has_told:
            has_told = True
            tell(f"waiting for {noun} 0{where} ...")
        time.sleep(_POLL_S)


def _is_welcome(link: Link, hello: Hello, secret: str, hear: Callable[[], Message | None]) -> bool:
    """Introduce ourselves; False where the other end does not know the secret, or says that we don't."""
    match hear():
        case {"kind": "challenge", "nonce": str(challenge)}:
            handshake = _Handshake(secret, challenge, secrets.token_hex(_NONCE_BYTES), hello)
        case _:
            return False
    link.send("hello", **asdict(hello), nonce=handshake.answer, proof=handshake.prove("caller"))
    match hear():
        case {"kind": "welcome", "proof": proof}:
            return handshake.is_proved("called", proof)
    return False


def _status(message: Message) -> int:
    status = message.get("exit_status")
    known = (UserError.exit_status, StoppedError.exit_status)
    return status if isinstance(status, int) and status in known else EchelonError.exit_status


def _hello_of(message: Message) -> Hello | None:
    match message:
        case {
            "kind": "hello",
            "rank": int(rank),
            "size": int(size),
            "workers": int(workers),
            "recipe": str(recipe),
            "host": str(host),
            "versions": str(versions),
        } if all(_is_name(text) for text in (recipe, host, versions)):
            return Hello(rank, size, workers, recipe, host, versions)
    return None


def _is_name(text: str) -> bool:
    """Names are shown to whoever sits before process 0, and may not write anything else on that terminal."""
    return len(text) <= _NAME_CHARACTERS and text.isprintable()


def _report_of(message: Message) -> Report:
    return Report(
        is_finished=message.get("is_finished") is True,
        failure=_text(message, "failure"),
        failed_at=_seconds(message.get("failed_at")),
        exit_status=_status(message),
    )


def _pulses_of(message: Message) -> dict[int, Pulse]:
    """By rank; what makes no sense is left out."""
    pulses = {}
    for entry in message["pulses"] if isinstance(message.get("pulses"), list) else []:
        match entry:
            case [int(rank), int(beats), int(turns), int(step), int() | float() as silent_s]:
                pulses[rank] = Pulse(beats, turns, step, _seconds(silent_s))
    return pulses


def _seconds(value: object) -> float:
    """A time that came over the wire; infinity for whatever is none, integers beyond all floats too."""
    with contextlib.suppress(OverflowError):
        if isinstance(value, int | float):
            return float(value)
    return math.inf


def _verdict_of(message: Message) -> Verdict:
    result = message.get("result")
    return Verdict(
        result=result if isinstance(result, dict) else {},
        failure=_text(message, "failure"),
        exit_status=_status(message),
    )


def _text(message: Message, name: str) -> str:
    text = message.get(name)
    return printable(text[:_TEXT_CHARACTERS])[:_TEXT_CHARACTERS] if isinstance(text, str) else ""
