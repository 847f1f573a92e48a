"""The hosts of a run as their launcher deals with them: their agents are started, asked and stopped over SSH."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echelon.agent.inquiry import ANSWER, HostAnswer
from echelon.agent.spec import AgentSpec, HostSpec, dump_spec
from echelon.agent.wire import SECRET_BYTES
from echelon.cluster.authority import make_credentials
from echelon.errors import HostsError, Reason, RemoteError, RunError
from echelon.launch.dialogue import parse_answer
from echelon.launch.ssh import Remote, side_by_side
from echelon.launch.trust import digest_of
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder, read_file

_START_S = 60.0
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
"""Below the ports that systems give to outgoing connections."""
_IN_DOUBT: tuple[Reason, ...] = ("timed out", "connection lost")
"""After these errors, it is unknown whether the request was carried out."""
_PASSED_ON = ("OMP_", "GOMP_", "MKL_", "KMP_", "NCCL_", "GLOO_", "TORCH_")


@dataclass(frozen=True)
class HostSession:
    """How a launcher reaches one host of a run, and what it knows of it."""

    number: int
    remote: Remote
    python: tuple[str, ...]
    spec: HostSpec
    sees_our_folder: bool
    """Whether its run folder is the launcher's own."""

    @property
    def name(self) -> str:
        return self.spec.name

    def run_agent(self, *arguments: str, stdin: bytes = b"", timeout_s: float = _START_S) -> dict[str, Any]:
        """Run `python -m echelon.agent` on the host and return its answer; RemoteError if it fails or refuses."""
        command = [*self.python, "-m", "echelon.agent", *arguments]
        completed = self.remote.run(command, stdin=stdin, timeout_s=timeout_s)
        lines = completed.stdout.splitlines()
        if not lines:
            said = completed.stderr.decode(errors="replace").strip().splitlines()
            raise RemoteError(self.name, "failed", f"its agent failed: {said[-1] if said else 'no word'}")
        return parse_answer(self.name, lines[-1])

    def ask(self, run: Path, *, timeout_s: float = _START_S) -> HostAnswer:
        """What the host says of a run; RemoteError if it cannot be asked."""
        answer = self.run_agent("ask", str(run), str(self.number), timeout_s=timeout_s)
        try:
            return ANSWER.validate_python(answer)
        except ValueError:
            raise RemoteError(self.name, "failed", "its Echelon is of another version") from None


@dataclass(frozen=True)
class Size:
    """How many of the hosts must be there for the run to continue, and how many may take part."""

    fewest: int
    most: int


def choose_size(text: str | None, hosts: int, *, is_shared: bool) -> Size:
    """Parse `MIN:MAX` or `MIN`; HostsError if that is impossible.

    By default one host is enough if the folder is shared, as the lease decides who continues. If each host has its own
    folder, more than half must be there, so that only one part of a split cluster continues.
    """
    if text is None:
        return Size(1 if is_shared else hosts // 2 + 1, hosts)
    fewest, colon, most = text.partition(":")
    try:
        size = Size(int(fewest), int(most) if colon else hosts)
    except ValueError:
        raise HostsError(f"--num-hosts {text}: write how many there must be and may be, as in 2:4") from None
    if not 1 <= size.fewest <= size.most <= hosts:
        raise HostsError(f"--num-hosts {text}: it must lie between 1 and {hosts}, the number of hosts given")
    return size


def warn_of_two_parts(size: Size, hosts: int) -> str | None:
    """Return a warning if hosts with their own folders could split into two runs; None if only a majority trains."""
    if 2 * size.fewest > hosts:
        return None
    return (
        f"warning: each host has its own run folder, and {size.fewest} of {hosts} is not a majority: if the network "
        f"splits, both parts train on, and their models differ; use --num-hosts {hosts // 2 + 1}:{size.most}, or a "
        "shared folder"
    )


def is_folder_shared(sessions: Sequence[HostSession], run: RunFolder) -> bool:
    """Whether all hosts see one run folder; False if each has its own, HostsError if only some share one."""
    if len(sessions) == 1:
        return sessions[0].sees_our_folder
    probe = secrets.token_hex(8)
    path = str(run.path)
    try:
        side_by_side(
            sessions, lambda session: session.run_agent("leave-probe", path, f"{probe}-{session.number}")
        )
        seen = side_by_side(sessions, lambda session: session.run_agent("list-probes", path, probe)["probes"])
    finally:
        side_by_side(sessions, lambda session: _ask_quietly(session, "remove-probes", path, probe))
    counts = {len(probes) for probes in seen}
    if counts == {len(sessions)}:
        return True
    if counts == {1}:
        return False
    with_others = [session.name for session, probes in zip(sessions, seen, strict=True) if len(probes) > 1]
    raise HostsError(
        f"{run.path} is one folder on {', '.join(with_others)}, but another on the other hosts; choose a --run that "
        "all hosts share, or that each has to itself"
    )


def render_specs(
    sessions: Sequence[HostSession],
    run: RunFolder,
    recipe: Recipe,
    size: Size,
    *,
    port: int | None,
    is_shared: bool,
    is_encrypted: bool = False,
) -> list[AgentSpec]:
    """Return the spec of each host's agent; the secret and the certificates are new with every start."""
    common = AgentSpec(
        run=str(run.path),
        host=0,
        hosts=tuple(session.spec for session in sessions),
        port=port or _FIRST_PORT + secrets.randbelow(_NUM_PORTS),
        secret=secrets.token_hex(SECRET_BYTES),
        shares_folder=is_shared,
        fewest=size.fewest,
        most=size.most,
        silence_s=recipe.restart.silence_seconds,
        hang_s=recipe.restart.hang_seconds,
        max_restarts=recipe.restart.max_restarts,
        window_s=recipe.restart.window_minutes * 60,
        environment=passed_on(os.environ),
        roster_digest=digest_of(read_file(run.hosts)) if run.hosts.exists() else "",
    )
    files = run_files(run)
    credentials = make_credentials(len(sessions)) if is_encrypted else [None] * len(sessions)
    return [
        replace(
            common,
            host=session.number,
            files={} if session.sees_our_folder else files,
            credentials=credentials[session.number],
        )
        for session in sessions
    ]


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the launcher's environment that are meant for every host."""
    return {name: value for name, value in environment.items() if name.startswith(_PASSED_ON)}


def run_files(run: RunFolder) -> dict[str, str]:
    """Return the files, in base64, that a host needs if it does not see our run folder."""
    existing = [path for path in run.start_files if path.exists()]
    return {path.name: base64.b64encode(read_file(path)).decode() for path in existing}


def start_agents(sessions: Sequence[HostSession], specs: Sequence[AgentSpec]) -> None:
    """Start all agents in parallel; if one cannot be started, stop the others again.

    An agent that was already there belongs to a run under way, and is left alone.
    """
    problems: dict[int, RemoteError] = {}

    def start(session: HostSession) -> None:
        try:
            start_agent(session, specs[session.number])
        except RemoteError as error:
            problems[session.number] = error

    side_by_side(sessions, start)
    if problems:
        in_doubt = {number for number, problem in problems.items() if problem.reason in _IN_DOUBT}
        ours = [
            session for session in sessions if session.number not in problems or session.number in in_doubt
        ]
        side_by_side(ours, lambda session: stop_agent_now(session, specs[session.number].run, session.number))
        raise RunError("\n".join(sorted(map(str, problems.values()))))


def start_agent(session: HostSession, spec: AgentSpec) -> None:
    session.run_agent("start", stdin=dump_spec(spec))


def stop_agent_now(session: HostSession, run: str, host: int) -> None:
    """End the agent of host number `host` and its workers at once, if the host can be reached."""
    _ask_quietly(session, "stop", run, str(host), "--now")


def _ask_quietly(session: HostSession, *arguments: str) -> None:
    """Like `run_agent`, but ignore failures: for cleaning up."""
    with contextlib.suppress(RemoteError):
        session.run_agent(*arguments)
