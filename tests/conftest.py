"""What several tests share: a toy language that a tiny model learns in seconds, and runs on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from echelon.cloud import prices
from echelon.runfolder import RunFolder
from tests.scheduling import pytest_collection_modifyitems, pytest_xdist_make_scheduler  # noqa: F401 - hooks
from tests.sshd import Sshd

# For this process, where nothing has imported torch yet, and for all that tests start: models here are tiny, and on a
# busy machine threads wait for each other far longer than they compute. A test of threads sets its own.
os.environ["OMP_NUM_THREADS"] = "1"

# Children see no width but what their test sets: neither that of the terminal here, nor the 80 columns that readline
# puts into the environment of children behind Python's back (pytest imports it).
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# A shell ignores Ctrl-C for what it starts in the background, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machine may be busy with other work: slowness is not a failure.
settings.register_profile("echelon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("echelon")


@pytest.fixture(scope="session", autouse=True)
def shipped_prices() -> Iterator[None]:
    """Count with the prices in the repository, whatever the user of this machine has asked AWS for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prices, "asked_path", lambda: None)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason to skip, with the number of tests."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")
    )
    if skipped:
        terminalreporter.section("skipped")
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"{count:4} {reason}")


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A worker that is set up within a test takes Ctrl-C and SIGTERM for itself; the next test gets them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    """Tests that draw tensors draw the same ones whatever ran before; pytest-randomly does it for random and NumPy."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


WORDS = {
    "one": "eins",
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "red": "rot",
    "green": "grün",
    "blue": "blau",
    "house": "Haus",
    "tree": "Baum",
    "bird": "Vogel",
}

RECIPE = """\
version = 1
name = "toy"
seed = 7
[data]
vocabulary = 120
max_tokens = 64
[[data.train]]
source = "train.en"
target = "train.de"
[data.valid]
source = "valid.en"
target = "valid.de"
[data.test]
source = "test.en"
target = "test.de"
[model]
preset = "tiny"
d_model = 32
d_ff = 64
encoder_layers = 1
decoder_layers = 1
dropout = 0.2
attention_dropout = 0.1
activation_dropout = 0.1
[train]
steps = 30
batch_tokens = 640
slots = 5
[schedule]
kind = "inverse_sqrt"
learning_rate = 5e-3
warmup_steps = 20
[evaluate]
every = 1000
sentences = 8
[checkpoint]
every = 1000
[track]
tensorboard = false
"""


def write_toy_corpus(folder: Path, name: str, lines: int, seed: int) -> None:
    """Parallel files whose target is the source, word by word, in the other language and the other order."""
    dice = random.Random(seed)
    sources = [dice.choices(sorted(WORDS), k=dice.randint(2, 9)) for _ in range(lines)]
    (folder / f"{name}.en").write_text("".join(" ".join(words) + "\n" for words in sources))
    targets = [[WORDS[word] for word in reversed(words)] for words in sources]
    (folder / f"{name}.de").write_text("".join(" ".join(words) + "\n" for words in targets))


@pytest.fixture
def toy_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with its corpus beside it; prepared data goes into the test's own folder."""
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "toy"
    folder.mkdir()
    for name, lines, seed in (("train", 600, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_toy_corpus(folder, name, lines, seed)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


@pytest.fixture
def echelon() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line as a user does, in a process of its own."""

    def run(*arguments: str | Path, status: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "echelon", *map(str, arguments)]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert result.returncode == status, f"{command}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture
def train_toy(
    toy_recipe: Path, tmp_path: Path, echelon: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., RunFolder]:
    """Trains the toy recipe into a folder of the given name; settings as on the command line."""

    def train(name: str, *settings: str, workers: int = 1) -> RunFolder:
        run = RunFolder(tmp_path / name)
        sets = [word for setting in settings for word in ("--set", setting)]
        echelon("train", toy_recipe, "--run", run.path, "--workers", str(workers), *sets)
        return run

    return train


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of a tiny model that knows the toy language, to be read only: all test processes share it."""
    from tests.small_run import make_small_run

    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    run = RunFolder(shared / "trained-run")
    with (shared / "trained-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not run.path.exists():
            make_small_run(root / "being-trained", steps=150).path.rename(run.path)
    return run


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets, or a skip that says why."""
    places = [os.environ.get("ECHELON_DATA"), str(Path(__file__).parents[2] / "shared" / "data")]
    for place in places:
        if place and (Path(place) / "multi30k").is_dir():
            return Path(place)
    pytest.skip("no real data here: set ECHELON_DATA to a folder that holds multi30k/")


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A real ssh server on this machine; commands there find the package that is being tested."""
    source = str(Path(__file__).parents[1] / "src")
    server = Sshd(tmp_path_factory.mktemp("sshd"), {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"})
    yield server
    server.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root, and a kernel that lets it")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no room on a disk while this lasts."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()
