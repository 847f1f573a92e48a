"""How the processes of a fixed group find out that they belong together, before their agents begin.

Process 0 listens; the others call it, prove that they know the group's secret, say hello and wait. It says when to
begin, and with which ranks. From then on the same connections carry the agents' heartbeats (star.py).
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from echelon.agent.connection import Answering, Connection, WireMessage, connect, introduce
from echelon.agent.rendezvous_file import Invitation
from echelon.errors import EchelonError, RefusedError, StoppedError, TrainingError, UserError
from echelon.launch.machine import own_versions
from echelon.runfolder import read_private
from echelon.untrusted import printable

SECRET_VARIABLE = "ECHELON_SECRET"
_FEWEST_CHARACTERS = 16
"""The least length of a secret that a person chooses: a shorter one can be guessed from a recorded handshake."""
JOIN_S = 600.0
"""How long processes wait for each other to be started."""
_SOON_S = 2.0
"""How long a process waits for another before it says so."""
_HELLO_S = 10.0
"""How long a caller may take to say who it is."""
_LAST_WORD_S = 1.0
"""How long sending a refusal may take."""
_LEAVE_S = 5.0
"""How long process 0 may take to leave after it has told the others how the run ended."""
_MAX_STRANGERS = 100
_MOST_TOLD = 20
"""Callers that were turned away."""
_POLL_S = 0.2
_TEXT_CHARACTERS = 20_000
_NAME_CHARACTERS = 300
_MOST_WORKERS = 2**16

TellUser = Callable[[str], None]


def _versions() -> str:
    own = own_versions()
    return f"echelon {own.echelon} ({own.source}), torch {own.torch}, Python {own.python}"


@dataclass(frozen=True)
class Hello:
    """What a process says of itself; all but its rank, host and workers must equal process 0's."""

    rank: int
    size: int
    workers: int
    recipe: str
    """Digest of the recipe, with what --set changed."""
    host: str = field(default_factory=lambda: printable(socket.gethostname()))
    versions: str = field(default_factory=_versions)


class Rendezvous:
    """Process 0's side. `noun` is what the user calls the processes: node or process."""

    def __init__(self, listener: socket.socket, own: Hello, noun: str, secret: str = "") -> None:
        self.own = own
        self._secret = secret.encode()
        self._noun = noun
        self._nouns = f"{noun}es" if noun.endswith("s") else f"{noun}s"
        self._listener = listener
        listener.setblocking(False)  # a caller may have gone before it is accepted
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._strangers: dict[Connection, Answering] = {}
        self._num_refused = 0
        self.connections: dict[int, Connection] = {}
        """The connections to those that take part, by rank."""
        self.hellos: dict[int, Hello] = {0: own}

    def gather(self, tell: TellUser, limit_s: float = JOIN_S) -> None:
        """Wait until all have called; UserError if some do not come in time."""
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

    def ask_all(self, kind: str, **values: Any) -> dict[int, WireMessage]:
        """Send all the others a message and wait for an answer of each. Raises what one of them failed with."""
        self.tell_all(kind, **values)
        answers: dict[int, WireMessage] = {}
        while len(answers) < len(self.connections):
            self._pump(_POLL_S)
            for rank, connection in self.connections.items():
                if rank not in answers and connection.inbox:
                    answers[rank] = connection.inbox.popleft()
                    if answers[rank]["kind"] == "failed":
                        raise UserError(f"{self.name(rank)}: {_text(answers[rank], 'failure')}")
                elif rank not in answers and connection.is_closed:
                    raise TrainingError(f"{self.name(rank)} has gone before training began")
        return answers

    def tell_all(self, kind: str, **values: Any) -> None:
        for connection in self.connections.values():
            connection.send(kind, **values)

    def refuse(self, error: EchelonError, wait_s: float) -> None:
        """Tell the others why the run does not begin, also those that call within `wait_s`."""
        deadline = time.monotonic() + wait_s
        self._pump(0.0)
        while self._missing() and self._is_listening and time.monotonic() < deadline:
            self._pump(_POLL_S)
        text = str(error)[:_TEXT_CHARACTERS]
        self.tell_all("refused", failure=text, exit_status=error.exit_status)
        self._stop_listening()

    def name(self, rank: int) -> str:
        return f"{self._noun} {rank} on {self.hellos[rank].host}"

    def _pump(self, timeout_s: float, tell: TellUser = lambda _: None) -> None:
        """Let in who calls and read what has come."""
        ready = self._selector.select(timeout_s)
        # The listener last: letting one more in closes the oldest stranger, whose own word may be in this very batch.
        for key, _ in sorted(ready, key=lambda found: found[0].fileobj is self._listener):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data, tell)
        now = time.monotonic()
        for connection, stranger in list(self._strangers.items()):
            if now - stranger.since > _HELLO_S:
                self._drop(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the caller has gone again
            peer, _ = self._listener.accept()
            connection = Connection(peer)
            if len(self._strangers) == _MAX_STRANGERS:
                self._drop(next(iter(self._strangers)))
            self._selector.register(connection, selectors.EVENT_READ, connection)
            self._strangers[connection] = Answering(connection, self._secret)

    def _read(self, connection: Connection, tell: TellUser) -> None:
        connection.read()
        if connection in self._strangers:
            self._strangers[connection].proceed()
            if connection.inbox:
                self._admit(connection, connection.inbox.popleft(), tell)
        if connection.is_closed:
            self._drop(connection)

    def _admit(self, connection: Connection, message: WireMessage, tell: TellUser) -> None:
        caller = self._strangers.pop(connection).caller
        hello = _hello_of(message)
        if hello is None or hello.rank != caller:
            connection.close()
            return
        problem = self._problem_with(hello)
        if problem:
            self._tell_of_refusal(
                f"{self._noun} {hello.rank} on {hello.host} was turned away: {problem}", tell
            )
            connection.send("refused", failure=problem, exit_status=UserError.exit_status)
            connection.close()
            return
        connection.allow_long_messages()
        self.connections[hello.rank] = connection
        self.hellos[hello.rank] = hello

    def _tell_of_refusal(self, line: str, tell: TellUser) -> None:
        """Report the first few refusals only: anyone who knows the secret, which may be empty, can cause more."""
        self._num_refused += 1
        if self._num_refused <= _MOST_TOLD:
            tell(line)
        if self._num_refused == _MOST_TOLD:
            tell("others that are turned away from now on are not told of")

    def _problem_with(self, hello: Hello) -> str:
        """Why this process cannot take part; empty if it can."""
        if hello.size != self.own.size:
            return f"it counts {hello.size} {self._nouns}, {self._noun} 0 counts {self.own.size}"
        if not 0 < hello.rank < self.own.size or not 0 < hello.workers <= _MOST_WORKERS:
            return f"there is no {self._noun} {hello.rank} of {self.own.size} with {hello.workers} workers"
        if hello.rank in self.hellos and not self.connections[hello.rank].is_closed:
            other = self.hellos[hello.rank]
            return f"{other.host} is {self._noun} {hello.rank} already"
        if hello.versions != self.own.versions:
            return f"it has {hello.versions}, {self._noun} 0 has {self.own.versions}"
        if hello.recipe != self.own.recipe:
            return f"its recipe, or its --set, differs from that of {self._noun} 0"
        return ""

    def _drop(self, connection: Connection) -> None:
        """Drop a connection."""
        self._strangers.pop(connection, None)
        self._selector.unregister(connection)
        connection.release()

    @property
    def _is_listening(self) -> bool:
        return self._listener.fileno() >= 0

    def _stop_listening(self) -> None:
        if self._is_listening:
            self._selector.unregister(self._listener)
            self._listener.close()
        for connection in list(self._strangers):
            self._drop(connection)


def read_secret(file: Path | None, environ: Mapping[str, str]) -> str:
    """The secret of processes that share no folder: what `file` holds, or ECHELON_SECRET; empty without both."""
    try:
        secret = (environ.get(SECRET_VARIABLE, "") if file is None else read_private(file)).strip()
        secret.encode()
    except UnicodeError as error:
        raise UserError(f"{SECRET_VARIABLE}: the secret cannot be read: {error}") from None
    if len(secret) < _FEWEST_CHARACTERS and (secret or file is not None):
        raise UserError(
            f"{file or SECRET_VARIABLE}: a secret has {_FEWEST_CHARACTERS} characters or more; "
            "`openssl rand -hex 32` makes one"
        )
    return secret


class Participant:
    """The side of every process but 0."""

    def __init__(self, connection: Connection, noun: str) -> None:
        self.connection = connection
        self._noun = noun

    def hear(self, kind: str) -> WireMessage:
        """The next message from process 0, which must be of this kind; RefusedError if it does not begin."""
        message = self.connection.wait(math.inf)
        if message is None:
            raise TrainingError(f"{self._noun} 0 has gone before training began")
        if message["kind"] == "refused":
            self.wait_until_first_has_left()
            raise RefusedError(_text(message, "failure"), _status(message))
        if message["kind"] != kind:
            raise TrainingError(f"{message['kind']!r} was not expected here, but {kind!r}; this is a bug")
        return message

    def say(self, kind: str, **values: Any) -> None:
        self.connection.send(kind, **values)

    def hear_result(self, timeout_s: float) -> dict[str, Any] | None:
        """Process 0's result of the run, after its last heartbeats; None if it sends none."""
        while (message := self.connection.wait(timeout_s)) is not None:
            if message["kind"] == "result" and isinstance(message.get("result"), dict):
                return dict(message["result"])
        return None

    def wait_until_first_has_left(self) -> None:
        """A site's launcher that sees one of its processes fail kills the others: process 0 is to speak first."""
        self.connection.wait_until(lambda: False, _LEAVE_S)


def join(
    find: Callable[[], Invitation | None], hello: Hello, noun: str, tell: TellUser, limit_s: float
) -> Participant:
    """Call process 0 until it answers, which may take as long as it needs to prepare.

    UserError if nobody is there within `limit_s`.
    """
    started, has_told = time.monotonic(), False
    while True:
        invitation = find()
        connection = connect(invitation.address) if invitation else None
        if connection is not None and invitation is not None:
            if _is_let_in(connection, hello, invitation, find, started + limit_s):
                return Participant(connection, noun)
            connection.release()
        waited_s = time.monotonic() - started
        where = f" at {invitation.address}" if invitation else ""
        if waited_s > limit_s:
            raise UserError(f"{noun} 0 did not answer{where} within {limit_s:.0f} seconds")
        if waited_s > _SOON_S and not has_told:
            has_told = True
            tell(f"waiting for {noun} 0{where} ...")
        time.sleep(_POLL_S)


def _is_let_in(
    connection: Connection,
    hello: Hello,
    invitation: Invitation,
    find: Callable[[], Invitation | None],
    deadline: float,
) -> bool:
    """Introduce ourselves, say hello, and wait for the first message, which stays in the inbox.

    Whoever listens there must have introduced itself by the deadline. Process 0 then waits for the others.
    """
    is_known = False

    def wait(is_so: Callable[[], bool]) -> None:
        while not is_so() and not connection.is_closed and find() == invitation:
            if not is_known and time.monotonic() > deadline:
                return
            connection.wait_until(is_so, _POLL_S)
        connection.wait_until(
            is_so, _LAST_WORD_S
        )  # the invitation may be gone because process 0 has just refused

    if not introduce(connection, invitation.secret.encode(), hello.rank, wait):
        return False
    is_known = True
    connection.send("hello", **asdict(hello))
    wait(lambda: bool(connection.inbox))
    return bool(connection.inbox)


def _status(message: WireMessage) -> int:
    status = message.get("exit_status")
    known = (UserError.exit_status, StoppedError.exit_status)
    return status if isinstance(status, int) and status in known else EchelonError.exit_status


def _hello_of(message: WireMessage) -> Hello | None:
    match message:
        case {
            "kind": "hello",
            "rank": int(rank),
            "size": int(size),
            "workers": int(workers),
            "recipe": str(recipe),
            "host": str(host),
            "versions": str(versions),
        } if (
            all(_is_name(text) for text in (recipe, host, versions))
            and max(map(abs, (rank, size, workers))) <= _MOST_WORKERS
        ):
            return Hello(rank, size, workers, recipe, host, versions)
    return None


def _is_name(text: str) -> bool:
    """Names are shown on process 0's terminal, and may not control it."""
    return len(text) <= _NAME_CHARACTERS and text.isprintable()


def _text(message: WireMessage, name: str) -> str:
    text = message.get(name)
    return printable(text[:_TEXT_CHARACTERS])[:_TEXT_CHARACTERS] if isinstance(text, str) else ""
