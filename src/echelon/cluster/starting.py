"""Starting an agent on every host of a run."""

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
"""After these nobody knows whether what was asked for has been done."""
_PASSED_ON = ("OMP_", "GOMP_", "MKL_", "KMP_", "NCCL_", "GLOO_", "TORCH_")


@dataclass(frozen=True)
class Seat:
    """A host of the run as its launcher deals with it."""

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
        """What `python -m echelon.agent` answers there; RemoteError where it cannot be asked or refuses."""
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
    """How many of the hosts there must be for the run to go on, and how many may take part."""

    fewest: int
    most: int


def choose_size(text: str | None, hosts: int, *, is_shared: bool) -> Size:
    """From `MIN:MAX` or `MIN`; HostsError where that cannot be. Without, one is enough where the lease on a shared
    folder decides who goes on; where each host has its own, more than half must be there, so that only one part can."""
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
    """That hosts with own folders may go apart into two runs; None if any part that trains is more than half."""
    if 2 * size.fewest > hosts:
        return None
    return (
        f"warning: each host has its own run folder, and {size.fewest} of {hosts} is not a majority: if the network "
        f"splits, both parts train on, and their models differ; use --num-hosts {hosts // 2 + 1}:{size.most}, or a "
        "shared folder"
    )


def is_folder_shared(seats: Sequence[Seat], run: RunFolder) -> bool:
    """Whether all hosts see one run folder; False where each has its own, HostsError where it is neither."""
    if len(seats) == 1:
        return seats[0].sees_our_folder
    mark = secrets.token_hex(8)
    try:
        side_by_side(seats, lambda seat: seat.run_agent("mark", str(run.path), f"{mark}-{seat.number}"))
        seen = side_by_side(seats, lambda seat: seat.run_agent("marks", str(run.path), mark)["marks"])
    finally:
        side_by_side(seats, lambda seat: _ask_quietly(seat, "unmark", str(run.path), mark))
    counts = {len(marks) for marks in seen}
    if counts == {len(seats)}:
        return True
    if counts == {1}:
        return False
    with_others = [seat.name for seat, marks in zip(seats, seen, strict=True) if len(marks) > 1]
    raise HostsError(
        f"{run.path} is one folder on {', '.join(with_others)}, but another on the other hosts; choose a --run that "
        "all hosts share, or that each has to itself"
    )


def render_specs(
    seats: Sequence[Seat],
    run: RunFolder,
    recipe: Recipe,
    size: Size,
    *,
    port: int | None,
    is_shared: bool,
    is_encrypted: bool = False,
) -> list[AgentSpec]:
    """What each host's agent is told; the secret, and the certificates, are new with every start."""
    common = AgentSpec(
        run=str(run.path),
        host=0,
        hosts=tuple(seat.spec for seat in seats),
        port=port or _FIRST_PORT + secrets.randbelow(_NUM_PORTS),
        secret=secrets.token_hex(SECRET_BYTES),
        shares_folder=is_shared,
        fewest=size.fewest,
        most=size.most,
        silence_s=recipe.restart.silence_seconds,
        hang_s=recipe.restart.hang_seconds,
        max_restarts=recipe.restart.max_restarts,
        window_s=recipe.restart.window_minutes * 60,
        files={},
        environment=passed_on(os.environ),
        roster_digest=digest_of(read_file(run.hosts)) if run.hosts.exists() else "",
    )
    files = run_files(run)
    credentials = make_credentials(len(seats)) if is_encrypted else [None] * len(seats)
    return [
        replace(
            common,
            host=seat.number,
            files={} if seat.sees_our_folder else files,
            credentials=credentials[seat.number],
        )
        for seat in seats
    ]


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What a user sets for training where it is launched, and means for every host."""
    return {name: value for name, value in environment.items() if name.startswith(_PASSED_ON)}


def run_files(run: RunFolder) -> dict[str, str]:
    """What a host needs that does not see our run folder, in base64."""
    paths = (run.recipe, run.data, run.tokeniser, run.images, run.provenance, run.hosts)
    return {path.name: base64.b64encode(read_file(path)).decode() for path in paths if path.exists()}


def start_agents(seats: Sequence[Seat], specs: Sequence[AgentSpec]) -> None:
    """Start all agents side by side; where one cannot be started, the others are stopped again.

    An agent that was there before is that of a run which is going on: it is left alone.
    """
    problems: dict[int, RemoteError] = {}

    def start(seat: Seat) -> None:
        try:
            start_agent(seat, specs[seat.number])
        except RemoteError as error:
            problems[seat.number] = error

    side_by_side(seats, start)
    if problems:
        in_doubt = {number for number, problem in problems.items() if problem.reason in _IN_DOUBT}
        ours = [seat for seat in seats if seat.number not in problems or seat.number in in_doubt]
        side_by_side(ours, lambda seat: stop_agent_now(seat, specs[seat.number].run, seat.number))
        raise RunError("\n".join(sorted(map(str, problems.values()))))


def start_agent(seat: Seat, spec: AgentSpec) -> None:
    seat.run_agent("start", stdin=dump_spec(spec))


def stop_agent_now(seat: Seat, run: str, host: int) -> None:
    """End the agent of host number `host`, and its workers, at once, if it can be done."""
    _ask_quietly(seat, "stop", run, str(host), "--now")


def _ask_quietly(seat: Seat, *arguments: str) -> None:
    """As `run_agent`, for tidying up after a failure, which is told already."""
    with contextlib.suppress(RemoteError):
        seat.run_agent(*arguments)
