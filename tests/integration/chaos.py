"""Random misfortune for a training run, seeded and bounded, and an account of what it cost.

    python -m tests.integration.chaos --events 200 --seed 3
    python -m tests.integration.chaos --set train.exchange=local --within 0.1

`Trial` trains the toy recipe in a folder of its own, strikes it again and again, and starts the same command anew
whenever it has exited. What strikes is in KINDS. The seed decides what strikes, whom and about when; the machine's
own timing decides at which instruction.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from echelon.monitor.records import RecordReader, read_records
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import RunFolder
from tests.integration.damage import differences, good_checkpoints, spoil, step_of
from tests.integration.runs import write_toy_recipe

KINDS = (
    "kill worker",
    "kill launcher",
    "kill all",
    "stop launcher",
    "freeze worker",
    "damage newest",
    "damage older",
    "full disk",
)
HAS_RESTARTS = "restart" in TranslationRecipe.model_fields
"""Whether `echelon train` notices workers that hang; without that, nobody wakes a frozen one."""
DISK_BYTES = 64 << 20
HANG_S = 8
SECONDS_PER_EVENT = 20
TRAINING_S_PER_EVENT = 1.0
"""Workers write steps down every half second, and a full disk lasts for up to two."""
STEPS_PER_EVENT = 9
_PACE_STEPS = 40
SETTINGS = (
    "train.batch_tokens=2560",
    "schedule.learning_rate=1e-3",
    "evaluate.every=30",
    "evaluate.samples=0",
    "evaluate.beam=1",
    "checkpoint.every=5",
    "checkpoint.keep=3",
    "checkpoint.best=loss",
    'early_stop=[{metric="bleu", patience=1000}]',
    *((f"restart.hang_seconds={HANG_S}",) if HAS_RESTARTS else ()),
)


PLAYED_HOSTS = """
import os
if "LOCAL_RANK" in os.environ:
    os.environ["LOCAL_RANK"] = str(int(os.environ["RANK"]) % {size})
    os.environ["LOCAL_WORLD_SIZE"] = "{size}"
"""
"""What Python runs before anything else in a worker, which then sees hosts where there is one machine."""


class ChaosError(AssertionError):
    """The run did not survive, or not in time."""


@dataclass(frozen=True)
class Plan:
    """What a trial is to suffer."""

    events: int
    seed: int
    workers: tuple[int, ...] = (2,)
    """The numbers of workers to choose from at each start."""
    kinds: tuple[str, ...] = KINDS
    step_s: float | None = None
    """Seconds of a step here, if they were measured: on a fast machine the events need more steps."""

    @property
    def steps(self) -> int:
        """Enough for all events: each waits until steps are seen again after the one before."""
        fewest = math.ceil(TRAINING_S_PER_EVENT / self.step_s) if self.step_s else 0
        return max(200, self.events * max(STEPS_PER_EVENT, fewest))

    @property
    def patience_s(self) -> float:
        """How long the trial may take."""
        return 120 + SECONDS_PER_EVENT * self.events + 2 * self.steps * (self.step_s or 0.0)

    def deal(self, possible: tuple[str, ...]) -> list[str]:
        """The kinds of the events: in random order, each about equally often."""
        kinds = [kind for kind in self.kinds if kind in possible]
        hands = [kinds[number % len(kinds)] for number in range(self.events)]
        random.Random(self.seed).shuffle(hands)
        return hands


@dataclass(frozen=True)
class Event:
    """One misfortune."""

    kind: str
    time: float
    step: int
    detail: str
    interrupts: bool
    """Whether workers must start again after it; damage done to files beside a going run waits to be found."""


@dataclass(frozen=True)
class Recovery:
    """From an event to the first step after it."""

    kind: str
    seconds: float
    steps_lost: int


@dataclass
class Summary:
    """What happened."""

    events: list[Event]
    recoveries: list[Recovery] = field(default_factory=list)
    starts: int = 0
    """Of the command, by the driver; restarts within a command are not counted here."""
    seconds: float = 0.0
    steps: int = 0
    steps_recomputed: int = 0
    planned: int = 0
    """Events; fewer have struck if the run ended before."""

    def __str__(self) -> str:
        lines = [
            f"{len(self.events)} of {self.planned} events struck, {len(self.recoveries)} recoveries, "
            f"{self.starts} starts of the command, {self.seconds:.0f} s in all",
            f"time lost {sum(r.seconds for r in self.recoveries):.1f} s, "
            f"{self.steps_recomputed} of {self.steps} steps recomputed",
            f"{'event':<16}{'count':>6}{'recoveries':>12}{'mean s':>9}{'max s':>8}{'steps lost, max':>17}",
        ]
        counts = Counter(event.kind for event in self.events)
        for kind in (kind for kind in KINDS if counts[kind]):
            mine = [recovery for recovery in self.recoveries if recovery.kind == kind]
            row = f"{kind:<16}{counts[kind]:>6}{len(mine):>12}"
            if mine:
                seconds = [recovery.seconds for recovery in mine]
                row += f"{sum(seconds) / len(seconds):>9.1f}{max(seconds):>8.1f}"
                row += f"{max(recovery.steps_lost for recovery in mine):>17}"
            lines.append(row)
        return "\n".join(lines)


class Arena:
    """A temporary folder with the toy corpus and its recipe; everything started here is gone when it closes."""

    def __init__(self, settings: Sequence[str] = (), workers_per_host: int | None = None) -> None:
        """`settings` are for all runs here, as on the command line; workers take each other to be on one host, or, in
        the order of their ranks, so many on each of several."""
        self._settings = (*SETTINGS, *settings)
        self._temporary = tempfile.TemporaryDirectory(prefix="echelon-chaos-")
        self.folder = Path(self._temporary.name)
        self.recipe = write_toy_recipe(self.folder)
        if workers_per_host is not None:
            (self.folder / "sitecustomize.py").write_text(PLAYED_HOSTS.format(size=workers_per_host))

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes():
            _send(process, signal.SIGKILL)
        self._temporary.cleanup()

    def start(self, run: RunFolder, steps: int, workers: int) -> subprocess.Popen[bytes]:
        """Start `echelon train`, as a user would; what it prints is added to NAME.log."""
        sets = [word for setting in (*self._settings, f"train.steps={steps}") for word in ("--set", setting)]
        command = [sys.executable, "-m", "echelon", "train", str(self.recipe), "--run", str(run.path)]
        # One thread each, whatever the number of workers: the number of threads changes the rounding.
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "ECHELON_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = path
        with open(self.log(run), "ab") as log:
            return subprocess.Popen(
                [*command, "--workers", str(workers), *sets],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, run: RunFolder) -> Path:
        return self.folder / f"{run.name}.log"

    def undisturbed(self, name: str, steps: int, workers: int) -> RunFolder:
        """A run that nothing happens to."""
        run = RunFolder(self.folder / name)
        if self.start(run, steps, workers).wait(timeout=600) != 0:
            raise ChaosError(f"the undisturbed run failed:\n{self.log(run).read_text()}")
        return run

    def measured(self, plan: Plan) -> Plan:
        """The plan with the pace of this machine, from a short run that nothing happens to."""
        run = self.undisturbed("pace", _PACE_STEPS, plan.workers[0])
        steps = [
            record["seconds"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"
        ]
        return replace(plan, step_s=statistics.median(steps))

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Processes whose command line names this folder, and `part` as a word."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_mine = any(str(self.folder) in word for word in words) and process.pid != os.getpid()
                if is_mine and (not part or part in words) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)


class Trial:
    """A run and its misfortunes; a context manager that ends its processes and mounts."""

    def __init__(self, arena: Arena, plan: Plan, name: str = "disturbed") -> None:
        self.arena = arena
        self.plan = plan
        self.run = RunFolder(arena.folder / name)
        self.run.create()
        self._dice = random.Random(f"{plan.seed} strikes")
        self._launcher: subprocess.Popen[bytes] | None = None
        self._reader = RecordReader(self.run.worker_records(0))
        self._last_start = 0.0
        self._last_progress = 0.0
        self._last_strike = 0.0
        self._step = 0
        self._events: list[Event] = []
        self._starts = 0
        self._began = time.time()
        self._deadline = time.monotonic() + plan.patience_s
        self._has_small_disk = _mount(self.run.checkpoints)
        self._strikes: dict[str, Callable[[], tuple[str, bool]]] = {
            "kill worker": lambda: (self._signal_worker(signal.SIGKILL), True),
            "kill launcher": lambda: (self._signal_launcher(signal.SIGKILL), True),
            "kill all": lambda: (self._kill_all(), True),
            "stop launcher": lambda: (self._signal_launcher(signal.SIGTERM), True),
            "freeze worker": lambda: (self._signal_worker(signal.SIGSTOP), True),
            "damage newest": lambda: self._damage(slice(-1, None)),
            "damage older": lambda: self._damage(slice(0, -1)),
            "full disk": lambda: (self._fill_disk(), False),
        }

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()
        if self._has_small_disk:
            subprocess.run(["umount", "--lazy", str(self.run.checkpoints)], check=False)

    def possible(self) -> tuple[str, ...]:
        """The kinds of events that can be survived here, or made at all."""
        missing = set() if HAS_RESTARTS else {"freeze worker"}
        missing |= set() if self._has_small_disk else {"full disk"}
        return tuple(kind for kind in KINDS if kind not in missing)

    def suffer(self) -> Summary:
        """The events of the plan, spread over the run, and the run to its end; fewer if that comes first."""
        kinds = self.plan.deal(self.possible())
        targets = sorted(self._dice.uniform(0.02, 0.85) * self.plan.steps for _ in kinds)
        for kind, target in zip(kinds, targets, strict=True):
            if not self._go_on(target, may_be_hasty=kind != "freeze worker"):
                break
            self._strike(kind)
        self._finish()
        return self._summary()

    def _go_on(self, target: float, may_be_hasty: bool) -> bool:
        """Keep the run going until it stands at `target`; now and then only for a moment, to strike a start-up. Returns
        False if the run has ended.

        A start-up may take two minutes before it counts as hanging, so that none is frozen.
        """
        is_hasty = (
            self._dice.random() < 0.25
            and may_be_hasty
            and self._last_kind() not in ("freeze worker", "full disk")
        )
        haste = time.monotonic() + self._dice.uniform(0.2, 4.0)
        while True:
            if self._tend():
                return False
            if is_hasty and time.monotonic() > haste:
                return True
            if self._step >= target and self._is_training():
                time.sleep(self._dice.uniform(0.0, 0.3))
                return True

    def _finish(self) -> None:
        while not self._tend():
            pass

    def _tend(self) -> bool:
        """Start the command where it has exited, and look at the records; whether the run has ended."""
        time.sleep(0.02)
        status = self._launcher.poll() if self._launcher else 1
        if status == 0:
            return True
        if status is not None:
            if self._starts and b"this is a bug in Echelon" in self.arena.log(self.run).read_bytes():
                raise ChaosError(f"an error that nobody thought of:\n{self._story()}")
            self._launcher = self.arena.start(self.run, self.plan.steps, self._dice.choice(self.plan.workers))
            self._starts += 1
        for record in self._reader.read():
            self._step = max(self._step, record.get("step", 0))
            if record["kind"] == "start":
                self._last_start = record["time"]
            elif record["kind"] in ("step", "checkpoint"):
                self._last_progress = record["time"]
        if time.monotonic() > self._deadline:
            raise ChaosError(f"not done in time; last events:\n{self._story()}")
        return False

    def _strike(self, kind: str) -> None:
        moment = time.time()
        detail, interrupts = self._strikes[kind]()
        self._events.append(Event(kind, moment, self._step, detail, interrupts))
        self._last_strike = time.time()

    def _signal_worker(self, number: signal.Signals) -> str:
        workers = self.arena.processes("echelon.train.worker")
        if not workers:
            return "no worker was there"
        victim = self._dice.choice(workers)
        _send(victim, number)
        return f"process {victim.pid}"

    def _signal_launcher(self, number: signal.Signals) -> str:
        if self._launcher is None or self._launcher.poll() is not None:
            return "it had exited"
        self._launcher.send_signal(number)
        return f"process {self._launcher.pid}"

    def _kill_all(self) -> str:
        doomed = self.arena.processes(str(self.run.path))
        self._dice.shuffle(doomed)
        for process in doomed:
            _send(process, signal.SIGKILL)
        if self._launcher is not None:
            self._launcher.wait(timeout=30)
        psutil.wait_procs(doomed, timeout=30)
        return f"{len(doomed)} processes"

    def _damage(self, which: slice) -> tuple[str, bool]:
        """Spoil a checkpoint while the run is going or after killing it; a good one always remains."""
        must_stop = self._dice.random() < 0.5
        if must_stop:
            self._kill_all()
        good = good_checkpoints(self.run.checkpoints)
        if len(good) < 2:
            return "nothing: it would have been the last good one", must_stop
        try:
            return spoil(self._dice.choice(good[which]), self._dice), must_stop
        except FileNotFoundError:
            return "nothing: it was just being removed", must_stop

    def _fill_disk(self) -> str:
        """Leave no room for a checkpoint for a moment; whoever fails on that is to recover afterwards."""
        ballast = self.run.checkpoints / ".ballast"
        with contextlib.suppress(OSError), open(ballast, "wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        seconds = self._dice.uniform(0.5, 2.0)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tend()
        ballast.unlink()
        return f"for {seconds:.1f} s"

    def _last_kind(self) -> str:
        return self._events[-1].kind if self._events else ""

    def _is_training(self) -> bool:
        """Whether steps were seen since the last event, after a new start where it needs one."""
        interruption = max((event.time for event in self._events if event.interrupts), default=0.0)
        return self._last_start > interruption and self._last_progress > self._last_strike

    def _story(self) -> str:
        events = [f"step {event.step}: {event.kind}, {event.detail}" for event in self._events[-5:]]
        log = self.arena.log(self.run).read_text(errors="replace").splitlines()[-40:]
        return "\n".join([*events, *log])

    def _summary(self) -> Summary:
        records = read_records(self.run.worker_records(0))
        steps = [record["step"] for record in records if record["kind"] == "step"]
        return Summary(
            events=self._events,
            recoveries=list(recoveries(self._events, records)),
            starts=self._starts,
            seconds=time.time() - self._began,
            steps=len(set(steps)),
            steps_recomputed=len(steps) - len(set(steps)),
            planned=self.plan.events,
        )


def recoveries(events: list[Event], records: list[dict[str, Any]]) -> Iterator[Recovery]:
    """Each time that steps came again after an event; of several events before it, the first is its cause.

    Workers write steps down every half second, so that a few that were lost with a killed one are not counted.
    """
    waiting, highest = list(events), 0
    start: dict[str, Any] | None = None
    for record in records:
        if record["kind"] == "start":
            start = record
        elif record["kind"] == "step":
            if start is not None:
                began = start["time"]
                cause = _cause([event for event in waiting if event.time < began])
                if cause is not None:
                    yield Recovery(cause.kind, record["time"] - cause.time, max(0, highest - start["step"]))
                waiting = [event for event in waiting if event.time >= began]
            start = None
            highest = max(highest, record["step"])


def _cause(struck: list[Event]) -> Event | None:
    """A full disk interrupts a run or does not; it is the cause where nothing else is."""
    certain = [event for event in struck if event.interrupts]
    possible = [event for event in struck if event.kind == "full disk"]
    return next(iter(certain or possible), None)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    """psutil makes sure that the number still belongs to the process that we mean."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _mount(folder: Path) -> bool:
    """A small disk of its own for a folder, where we may make one."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def newest(run: RunFolder) -> Path:
    """The newest good checkpoint."""
    return good_checkpoints(run.checkpoints)[-1]


def compare_losses(whole: RunFolder, run: RunFolder, within: float) -> None:
    """Say how far the last validation losses of two runs are apart; exits where it is too far."""
    one, two = (last_loss(each) for each in (whole, run))
    print(f"validation loss {two:.4f}, undisturbed {one:.4f}: {two / one - 1:+.2%}")
    if abs(two / one - 1) > within:
        sys.exit(f"more than {within:.0%} apart")


def last_loss(run: RunFolder) -> float:
    """Of the validation set, at the end."""
    valid = [record for record in read_records(run.worker_records(0)) if record["kind"] == "valid"]
    return float(valid[-1]["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument(
        "--within", type=float, help="compare only the loss: what takes part when may change the bits"
    )
    options = parser.parse_args()
    with Arena(options.set) as arena:
        plan = arena.measured(Plan(options.events, options.seed, (options.workers,)))
        print(
            f"{plan.events} events, seed {plan.seed}: an undisturbed run of {plan.steps} steps first",
            flush=True,
        )
        whole = arena.undisturbed("whole", plan.steps, plan.workers[0])
        with Trial(arena, plan) as trial:
            print(f"kinds: {', '.join(trial.possible())}", flush=True)
            print(trial.suffer())
            if options.within is not None:
                compare_losses(whole, trial.run, options.within)
                return
            wrong = differences(newest(whole), newest(trial.run))
            if step_of(newest(trial.run)) != plan.steps or wrong:
                sys.exit(f"NOT the same: {wrong[:5]}")
    print("the run ended with the weights, optimiser and state of the undisturbed one, to the bit")


if __name__ == "__main__":
    main()
