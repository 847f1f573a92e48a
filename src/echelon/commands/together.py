"""`train` as one of several processes that form one group: a site's launcher started them, or a user on each host.

Process 0 prepares the data and the run folder; the others wait for it, and hosts that do not see its folder make
one of their own. Then each starts its workers, watches them, and hears how the others ended: the first failure ends
all of them, with the same message.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from echelon.commands.preparing import prepare_data
from echelon.commands.training import (
    Begun,
    TrainOptions,
    begin,
    open_run,
    say_what_begins,
    summarise,
    wanted_workers,
)
from echelon.commands.tuning import refuse_auto_batch
from echelon.console import tell
from echelon.data.planning import AnyPrepared, open_data
from echelon.errors import (
    FINAL_STATUS,
    DataError,
    EchelonError,
    RefusedError,
    StoppedError,
    TrainingError,
    UserError,
    WorkerError,
)
from echelon.launch.cores import available_cores
from echelon.launch.link import Message
from echelon.launch.local import (
    LocalJob,
    Placement,
    StopRequests,
    listen,
    signals_call,
)
from echelon.launch.lookout import Lookout
from echelon.launch.meeting import (
    JOIN_S,
    SECRET_VARIABLE,
    Hello,
    Invitation,
    Master,
    Member,
    Report,
    Verdict,
    join,
    read_secret,
)
from echelon.launch.network import card_towards, is_loopback, own_address, resolve
from echelon.launch.noticeboard import MEETING_HINT, Noticeboard, address_for_others
from echelon.launch.site import Address, Place, threads_for
from echelon.launch.supervise import Supervised
from echelon.monitor.records import RecordReader, RecordWriter
from echelon.monitor.screen import open_screen
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_recipe
from echelon.recipe.workers import WorkerRange

_REFUSE_S = 60.0
"""How long process 0, having failed, waits for the others to tell them: not every launcher ends them."""

_NO_SECRET = (
    "warning: whoever reaches this port and has the recipe can take a host's place; give every host the same secret, "
    f"with --secret-file or {SECRET_VARIABLE} (`openssl rand -hex 32` makes one)"
)


def train_together(options: TrainOptions, place: Place, console: Console) -> Verdict:
    """As `train`, with the other processes of `place`: how it ended is the same in all of them.

    Raises StoppedError where told to stop before training began, and other errors where it could not begin.
    """
    with signals_call(_raise_stopped):
        part = _Part(options, place, console)
        try:
            return part.lead() if place.is_first else part.follow()
        except RefusedError as error:
            return Verdict(failure=str(error), exit_status=error.exit_status)


def own_workers(options: TrainOptions, place: Place, recipe: Recipe) -> int:
    """How many workers this process starts; UserError where that, or their batch, cannot be known."""
    refuse_auto_batch(recipe)
    if place.is_host:
        workers = wanted_workers(options, recipe)
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


class _Part:
    """One process's part of a training."""

    def __init__(self, options: TrainOptions, place: Place, console: Console) -> None:
        self._place = place
        self._secret = read_secret(place.secret_file, os.environ) if place.master else ""
        self._console = console
        self._stops = StopRequests()
        self._recipe, self._run = open_run(options)
        self._workers = own_workers(options, place, self._recipe)
        self._options = replace(options, workers=WorkerRange(self._workers, self._workers))
        self._board = Noticeboard(self._run, place)
        self._noun = "node" if place.is_host else "process"

    def lead(self) -> Verdict:
        """Process 0's."""
        address = self._own_address()
        port = self._place.master.port if self._place.master else 0
        with (
            _listen(address, port) as listener,
            self._board.invite(Address(address, listener.getsockname()[1])) as invitation,
        ):
            secret = self._secret if self._place.master else invitation.secret
            if not secret and not is_loopback(address):
                self._tell(_NO_SECRET)
            master = Master(listener, self._hello(), self._noun, secret)
            try:
                with begin(self._options, self._console) as begun, listen(address) as store:
                    placement = self._assemble(master, invitation, begun, store)
                    with signals_call(self._stops.ask):
                        report = self._train(placement, begun.lock, master, store)
                        return self._conclude(master, report)
            except EchelonError as error:
                # Hosts that are started one by one, or told to stop, are not waited for.
                is_alone = self._place.is_host or isinstance(error, StoppedError)
                master.refuse(error, wait_s=0.0 if is_alone else _REFUSE_S)
                raise

    def follow(self) -> Verdict:
        """Every other process's."""
        place = self._place
        if place.master is None and not place.has_one_host and place.local_rank == 0:
            self._board.announce_host(place.rank)
        member = self._join()
        wanted = member.hear("prepare")
        invitation = self._board.find()
        shares_folder = invitation is not None and invitation.fingerprint == wanted["invitation"]
        with contextlib.ExitStack() as stack:
            try:
                lock = self._get_ready(wanted, shares_folder, stack)
            except EchelonError as error:
                member.say("failed", failure=str(error))
                raise
            member.say("ready", shares_folder=shares_folder, local_rank=place.local_rank)
            placement = self._placement(member.hear("begin"))
            with signals_call(self._stops.ask):
                verdict = member.conclude(self._train(placement, lock, member))
        return replace(verdict, result={**verdict.result, "run": str(self._run.path)})

    def _own_address(self) -> str:
        """Where process 0 listens: at the address of one network card, never at all of them."""
        master = self._place.master
        if master is None:
            return address_for_others(self._place, self._board, JOIN_S)
        if self._place.launcher in ("kubernetes", "kubeflow", "vertex"):
            _wait_for_name(master.host, JOIN_S)
        try:
            return own_address(master.host)
        except UserError as error:
            raise UserError(f"{self._noun} 0 listens at {master}, but {error}") from None

    def _hello(self) -> Hello:
        recipe = hashlib.sha256(dump_recipe(self._recipe).encode()).hexdigest()
        return Hello(self._place.rank, self._place.size, self._workers, recipe)

    def _join(self) -> Member:
        master = self._place.master
        find = self._board.find if master is None else lambda: Invitation(master, self._secret)
        try:
            return join(find, self._hello(), self._noun, self._tell, JOIN_S)
        except UserError as error:
            hint = "is it running, and can it be reached from here?" if master else MEETING_HINT
            raise UserError(f"{error}; {hint}") from None

    def _assemble(
        self, master: Master, invitation: Invitation, begun: Begun, store: socket.socket
    ) -> Placement:
        """Wait for everybody, have their folders ready, and give everybody their ranks; returns our own."""
        master.gather(self._tell)
        data = {"folder": str(begun.prepared.folder.resolve()), "key": begun.prepared.key}
        answers = master.ask_all("prepare", invitation=invitation.fingerprint, data=data)
        hellos = [master.hellos[rank] for rank in range(self._place.size)]
        first_ranks = [0, *accumulate(hello.workers for hello in hellos)]
        address, port = store.getsockname()[:2]
        start = {
            "size": first_ranks[-1],
            "address": address,
            "port": port,
            "num_hosts": len({hello.host for hello in hellos}),
            "shares_folder": agree_on_folder(self._place, hellos, answers),
        }
        say_what_begins(begun, WorkerRange(first_ranks[-1], first_ranks[-1]), self._console)
        hosts = dict.fromkeys(hello.host for hello in hellos)
        self._tell(f"starting {first_ranks[-1]} workers on {', '.join(hosts)} ...")
        for rank in answers:
            master.tell(rank, "begin", **start, first_rank=first_ranks[rank])
        return self._placement({**start, "first_rank": 0})

    def _get_ready(self, wanted: Message, shares_folder: bool, stack: contextlib.ExitStack) -> int | None:
        """See to it that this host's workers find their data and a run folder; its lock where the folder is our own."""
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
        """Prepared data lie where process 0 has them, or are made here, in the same place."""
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

    def _placement(self, start: Message) -> Placement:
        place = self._place
        return Placement(
            size=start["size"],
            first_rank=start["first_rank"],
            address=start["address"],
            port=start["port"],
            num_hosts=start["num_hosts"],
            interface=card_towards(start["address"]).name,
            first_local_rank=place.local_rank,
            local_size=None if place.is_host else place.local_size,
            threads=threads_for(place, os.environ),
            shares_folder=start["shares_folder"],
        )

    def _train(
        self,
        placement: Placement,
        lock: int | None,
        others: Master | Member,
        store: socket.socket | None = None,
    ) -> Report:
        """Run this process's workers to their end, or to that of the others."""
        reader = RecordReader(self._run.worker_records(placement.first_rank), from_end=True)
        screen = open_screen(self._console, self._recipe.train.log_every)
        lookout = Lookout(others, self._stops, self._recipe.restart.hang_seconds)

        def look_around() -> None:
            for record in reader.read():
                screen.show(record)
            lookout.look(job)

        job = LocalJob(
            self._run,
            self._workers,
            lock,
            stops=self._stops,
            hang_s=self._recipe.restart.hang_seconds,
            place=placement,
            listener=store,
        )
        try:
            return Report(is_finished=job.watch(look_around))
        except WorkerError as error:
            status = UserError.exit_status if error.exit_code == FINAL_STATUS else error.exit_status
            return Report(failure=str(error), failed_at=job.failed_at, exit_status=status)
        except TrainingError as error:  # we killed them
            return Report(failure=str(error))
        finally:
            screen.close()

    def _conclude(self, master: Master, report: Report) -> Verdict:
        verdict = master.conclude(report, self._summarise)
        if verdict.failure:
            records = RecordWriter(self._run.launcher_records)
            records.write("failure", message=verdict.failure)
            records.close()
        return verdict

    def _summarise(self, is_finished: bool) -> dict[str, Any]:
        return summarise(self._run, self._recipe, Supervised(is_finished, 0))

    def _tell(self, message: str) -> None:
        tell(self._console, message)


def agree_on_folder(place: Place, hellos: Sequence[Hello], answers: dict[int, Message]) -> bool:
    """Whether all hosts see one run folder; False where every host has its own. UserError where some share one."""
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
    """A new pod's name is not known at once."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(UserError):
            resolve(host)
            return
        time.sleep(1.0)
