"""`train` as one of the processes of a site: its launcher started them, or a user on each host.

Process 0 prepares the data and the run folder; the others wait for it, and hosts that do not see its folder make
one of their own. Then each runs an agent, which ends with it. The group is fixed: what fails in one process ends all of
them, with the same message, because a site's launcher cannot start one process again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from echelon.agent.actions import RecordEvent
from echelon.agent.agent import Agent
from echelon.agent.connection import Connection, WireMessage
from echelon.agent.execution import HostExecutor, placement_of
from echelon.agent.generation import LEADER, Generation
from echelon.agent.outcome import RunOutcome
from echelon.agent.rendezvous import (
    JOIN_S,
    SECRET_VARIABLE,
    Hello,
    Participant,
    Rendezvous,
    join,
    read_secret,
)
from echelon.agent.rendezvous_file import (
    RENDEZVOUS_HINT,
    Invitation,
    RendezvousFolder,
    address_for_others,
)
from echelon.agent.spec import AgentSpec, HostSpec
from echelon.agent.star import Star
from echelon.commands.prepare import prepare_data
from echelon.commands.training import (
    Begun,
    TrainOptions,
    begin,
    open_run,
    say_what_begins,
    summarise,
)
from echelon.console import tell
from echelon.data.batch_plan import AnyPrepared, open_data
from echelon.errors import (
    DataError,
    EchelonError,
    RefusedError,
    StoppedError,
    TrainingError,
    UserError,
)
from echelon.launch.cores import available_cores
from echelon.launch.interfaces import interface_towards, is_loopback, own_address, resolve
from echelon.launch.local import listen
from echelon.launch.placement import Placement
from echelon.launch.site import Address, Place, threads_for
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.monitor.records import RecordWriter
from echelon.monitor.screen import follow_records, open_screen
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_table
from echelon.recipe.workers import WorkerRange, parse_workers
from echelon.resolve.measured import refuse_auto_batch
from echelon.untrusted import printable

_REFUSE_S = 60.0
"""How long process 0, having failed, waits for the others to tell them: not every launcher ends them."""

_SILENT_S = 15.0
"""How long another process may be silent. Longer than `restart.silence_seconds`: losing one ends the run."""
_RESULT_S = 60.0
"""How long process 0 may take to send the result."""

_UNTIL_EXIT: list[Rendezvous] = []
"""Connections stay open until process 0 exits: their end tells the others that it has left."""

_NO_SECRET = (
    "warning: whoever reaches this port and has the recipe can take a host's place; give every host the same secret, "
    f"with --secret-file or {SECRET_VARIABLE} (`openssl rand -hex 32` makes one)"
)


def train_at_site(options: TrainOptions, place: Place, console: Console) -> dict[str, Any]:
    """Like `train`, with the other processes of `place`; all of them have the same result, or error.

    Raises RefusedError if the group does not begin or has failed, which process 0 tells the user, StoppedError if told
    to stop before training began, and other errors for what only this process knows.
    """
    with signals_call(_raise_stopped):
        process = _SiteProcess(options, place, console)
        return process.lead() if place.is_first else process.follow()


def own_workers(options: TrainOptions, place: Place, recipe: Recipe) -> int:
    """How many workers this process starts; UserError if that, or their batch, cannot be known."""
    refuse_auto_batch(recipe)
    if place.is_host:
        workers = parse_workers(recipe.train.workers)
        if workers.is_auto:
            raise UserError(
                'workers = "auto" is for a machine that trains alone; say how many each host starts: --workers N'
            )
        return workers.at_start(available_cores())
    if options.workers is not None:
        raise UserError(
            f"--workers: the {place.size} processes that {place.launcher} has started are the workers; leave it out"
        )
    return 1


def _raise_stopped() -> NoReturn:
    raise StoppedError("stopped before training began; the same command begins again")


class _SiteProcess:
    """One of the processes that train together: process 0 leads, the others follow."""

    def __init__(self, options: TrainOptions, place: Place, console: Console) -> None:
        self._place = place
        self._secret = read_secret(place.secret_file, os.environ) if place.master else ""
        self._console = console
        self._stops = StopRequests()
        self._recipe, self._run = open_run(options)
        self._workers = own_workers(options, place, self._recipe)
        here = self._workers if place.is_host else place.local_size
        self._options = replace(options, workers=WorkerRange(here, here))
        self._folder = RendezvousFolder(self._run, place)
        self._noun = "node" if place.is_host else "process"

    def lead(self) -> dict[str, Any]:
        """Gather the others, train and send them the result: process 0's part."""
        address = self._own_address()
        port = self._place.master.port if self._place.master else 0
        with (
            _listen(address, port) as listener,
            self._folder.invite(Address(address, listener.getsockname()[1])) as invitation,
        ):
            secret = self._secret if self._place.master else invitation.secret
            if not secret and not is_loopback(address):
                self._tell(_NO_SECRET)
            rendezvous = Rendezvous(listener, self._hello(), self._noun, secret)
            _UNTIL_EXIT.append(rendezvous)
            try:
                with begin(self._options, self._console) as begun:
                    start = self._assemble(rendezvous, invitation, begun, address)
                    with signals_call(self._stops.ask):
                        ended = self._train(start, rendezvous.connections, begun.lock)
                        return self._conclude(rendezvous, ended)
            except RefusedError:
                raise  # by us, after all have begun
            except EchelonError as error:
                # Hosts that are started one by one, or told to stop, are not waited for.
                is_alone = self._place.is_host or isinstance(error, StoppedError)
                rendezvous.refuse(error, wait_s=0.0 if is_alone else _REFUSE_S)
                raise

    def follow(self) -> dict[str, Any]:
        """Join process 0, train and hear the result: every other process's part."""
        place = self._place
        if place.master is None and not place.has_one_host and place.local_rank == 0:
            self._folder.announce_host(place.rank)
        participant = self._join()
        wanted = participant.hear("prepare")
        invitation = self._folder.find()
        shares_folder = invitation is not None and invitation.fingerprint == wanted["invitation"]
        with contextlib.ExitStack() as stack:
            try:
                lock = self._get_ready(wanted, shares_folder, stack)
            except EchelonError as error:
                participant.say("failed", failure=str(error))
                raise
            participant.say("ready", shares_folder=shares_folder, local_rank=place.local_rank)
            start = participant.hear("begin")
            with signals_call(self._stops.ask):
                ended = self._train(start, {LEADER: participant.connection}, lock)
                return self._hear_result(participant, ended)

    def _own_address(self) -> str:
        """Where process 0 listens: at the address of one network interface, never at all of them."""
        master = self._place.master
        if master is None:
            return address_for_others(self._place, self._folder, JOIN_S)
        if self._place.launcher in ("kubernetes", "kubeflow", "vertex"):
            _wait_for_name(master.host, JOIN_S)
        try:
            return own_address(master.host)
        except UserError as error:
            raise UserError(f"{self._noun} 0 listens at {master}, but {error}") from None

    def _hello(self) -> Hello:
        table = self._recipe.model_dump(exclude_none=True)
        del table["train"]["workers"]  # each host's own
        recipe = hashlib.sha256(dump_table(table).encode()).hexdigest()
        return Hello(self._place.rank, self._place.size, self._workers, recipe)

    def _join(self) -> Participant:
        master = self._place.master
        find = self._folder.find if master is None else lambda: Invitation(master, self._secret)
        try:
            return join(find, self._hello(), self._noun, self._tell, JOIN_S)
        except UserError as error:
            hint = "is it running, and can it be reached from here?" if master else RENDEZVOUS_HINT
            raise UserError(f"{error}; {hint}") from None

    def _assemble(
        self, rendezvous: Rendezvous, invitation: Invitation, begun: Begun, address: str
    ) -> WireMessage:
        """Wait for all processes and their folders; return the "begin" message that all were sent."""
        rendezvous.gather(self._tell)
        data = {"folder": str(begun.prepared.folder.resolve()), "key": begun.prepared.key}
        answers = rendezvous.ask_all("prepare", invitation=invitation.fingerprint, data=data)
        hellos = [rendezvous.hellos[rank] for rank in range(self._place.size)]
        size = sum(hello.workers for hello in hellos)
        hosts = dict.fromkeys(hello.host for hello in hellos)
        start = {
            "names": [rendezvous.name(rank) for rank in range(self._place.size)],
            "workers": [hello.workers for hello in hellos],
            "address": address,
            "num_hosts": len(hosts),
            "shares_folder": agree_on_folder(self._place, hellos, answers),
        }
        say_what_begins(begun, WorkerRange(size, size), self._console)
        self._tell(f"starting {size} workers on {', '.join(hosts)} ...")
        rendezvous.tell_all("begin", **start)
        return start

    def _get_ready(self, wanted: WireMessage, shares_folder: bool, stack: contextlib.ExitStack) -> int | None:
        """Give this host's workers their data and a run folder; return its lock if the folder is our own."""
        if self._place.local_rank > 0:
            return None  # another process of this host does
        data = wanted["data"]
        if shares_folder:
            self._see_data(Path(data["folder"]), data["key"])
            return None
        begun = stack.enter_context(begin(self._options, self._console))
        _refuse_other_key(begun.prepared, data["key"])
        return begun.lock

    def _see_data(self, folder: Path, key: str) -> None:
        """Find the prepared data where process 0 has them, or prepare them here, in the same place."""
        try:
            _refuse_other_key(open_data(self._recipe, folder), key)
        except DataError:
            prepared = prepare_data(self._recipe, self._options.recipe.parent, self._console)
            _refuse_other_key(prepared, key)
            if prepared.folder.resolve() != folder:
                raise UserError(
                    f"prepared data lie in {prepared.folder} here and in {folder} on the first host; "
                    "set ECHELON_CACHE to the same folder on all hosts"
                ) from None

    def _spec(self, start: WireMessage) -> AgentSpec:
        """The spec of this process's agent. All processes connect to process 0, so the others need no addresses."""
        interface = interface_towards(start["address"]).name
        hosts = [
            HostSpec(name, start["address"], interface, workers)
            for name, workers in zip(start["names"], start["workers"], strict=True)
        ]
        return AgentSpec(
            run=str(self._run.path),
            host=self._place.rank,
            hosts=tuple(hosts),
            shares_folder=start["shares_folder"],
            fewest=len(hosts),
            most=len(hosts),
            silence_s=_SILENT_S,
            hang_s=self._recipe.restart.hang_seconds,
            is_fixed=True,
        )

    def _train(
        self, start: WireMessage, connections: Mapping[int, Connection], lock: int | None
    ) -> RunOutcome:
        """Run this process's agent until the run has ended for all."""
        spec, place = self._spec(start), self._place

        def place_workers(spec: AgentSpec, generation: Generation) -> Placement:
            return replace(
                placement_of(spec, generation),
                num_hosts=start["num_hosts"],
                first_local_rank=place.local_rank,
                local_size=None if place.is_host else place.local_size,
                threads=threads_for(place, os.environ),
            )

        first_rank = sum(start["workers"][: place.rank])
        screen = open_screen(self._console, self._recipe.train.log_every)
        reader = follow_records(self._run.worker_records(first_rank), screen)

        def show_new_records() -> None:
            for record in reader.read():
                screen.show(record)

        executor = HostExecutor(spec, self._run, lock, _ignore, place=place_workers)
        agent = Agent(spec, executor, Star(spec, connections), self._stops)
        try:
            return asyncio.run(agent.run(show_new_records))
        finally:
            screen.close()

    def _conclude(self, rendezvous: Rendezvous, ended: RunOutcome) -> dict[str, Any]:
        """Send the others the result, or raise what failed."""
        if ended.outcome == "failed":
            records = RecordWriter(self._run.launcher_records)
            records.write("failure", message=ended.message)
            records.close()
            raise _failure(ended)
        result = summarise(self._run, self._recipe, ended)
        rendezvous.tell_all("result", result=result)
        return result

    def _hear_result(self, participant: Participant, ended: RunOutcome) -> dict[str, Any]:
        """The result as process 0 sends it; process 0 leaves first."""
        if ended.outcome == "failed":
            participant.wait_until_first_has_left()
            raise _failure(ended)
        result = participant.hear_result(_RESULT_S)
        if result is None:
            raise RefusedError(f"{self._noun} 0 has gone without a word", TrainingError.exit_status)
        participant.wait_until_first_has_left()
        return {**result, "run": str(self._run.path)}

    def _tell(self, message: str) -> None:
        tell(self._console, message)


def _failure(ended: RunOutcome) -> RefusedError:
    status = UserError.exit_status if ended.is_final else TrainingError.exit_status
    return RefusedError(printable(ended.message), status)  # other hosts wrote it


def _ignore(_news: RecordEvent) -> None:
    """A fixed group has no news before it ends."""


def agree_on_folder(place: Place, hellos: Sequence[Hello], answers: dict[int, WireMessage]) -> bool:
    """Whether all hosts see one run folder; False if every host has its own. UserError if some share one."""
    local_ranks = {}
    away = []
    for rank, answer in answers.items():
        match answer:
            case {"shares_folder": bool(shares), "local_rank": int(local_rank)} if 0 <= local_rank <= rank:
                local_ranks[rank] = local_rank
                away += [] if shares else [rank]
            case _:
                raise TrainingError(
                    f"{hellos[rank].host} answers what nobody asked; this is a bug, or no Echelon"
                )
    if not away:
        return True
    for rank, local_rank in local_ranks.items():
        if rank not in away and (place.is_host or hellos[rank].host != hellos[0].host):
            raise UserError(
                f"{hellos[rank].host} sees the run folder of {hellos[0].host} and {hellos[away[0]].host} does not; "
                "put it where all hosts see it, or where each has its own"
            )
        if hellos[rank - local_rank].host != hellos[rank].host:
            raise UserError(
                "without a shared run folder, ranks must be dealt out host by host: mpirun --map-by slot, "
                "srun --distribution=block"
            )
    return False


def _refuse_other_key(prepared: AnyPrepared, key: str) -> None:
    if prepared.key != key:
        raise UserError(
            f"the recipe's data in {prepared.folder} are not those of the first host; bring the same files here"
        )


def _listen(address: str, port: int) -> socket.socket:
    try:
        return listen(address, port)
    except OSError as error:
        raise UserError(
            f"{address}:{port} cannot be listened at: {error.strerror}; choose another port"
        ) from None


def _wait_for_name(host: str, limit_s: float) -> None:
    """Wait until `host` resolves: a new pod's name does not at once."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(UserError):
            resolve(host)
            return
        time.sleep(1.0)
