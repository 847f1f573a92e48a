"""The programs that are compared, each a process that trains as many steps as it is told and waits in between."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from echelon.commands.run_setup import write_run
from echelon.data.batch_plan import plan_batches
from echelon.data.batches import packed
from echelon.data.prepare import default_cache, prepare
from echelon.data.prepared import Prepared
from echelon.launch.placement import Placement, render_worker
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import transformer_shape
from echelon.runfolder import RunFolder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECIPE = HERE / "recipe.toml"
PEERS = default_cache() / "peers"
"""The peers' virtual environments."""
NUM_BATCHES = 200
TCMALLOC = "libtcmalloc_minimal.so.4"
TORCH = "torch==2.13.0"
HUGGING_FACE, GENERATE = "hugging-face", "generate"
"""Environments, by the names of their lists in bench/peers/environments."""
OTHERS = {"joey-nmt": "JoeyNMT", "eole": "Eole", "opennmt-py": "OpenNMT-py", "sockeye": "Sockeye"}
"""The environments of the other peers, and what these are called."""


@dataclass
class Contender:
    """One way to train; several processes where it has several workers, of which the first answers."""

    name: str
    processes: list[subprocess.Popen[str]]
    is_needed: bool = True
    """Whether there is no comparison without it."""
    answers: list[dict[str, Any]] = field(default_factory=list)

    def train(self, steps: int) -> dict[str, Any]:
        """Have it train and wait for what it says of it; RuntimeError where it is no more."""
        line = ""
        with contextlib.suppress(BrokenPipeError):
            for process in self.processes:
                assert process.stdin is not None
                process.stdin.write(f"{steps}\n")
                process.stdin.flush()
            assert self.processes[0].stdout is not None
            line = self.processes[0].stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended by itself")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        for process in self.processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True)
class Material:
    """The same model and data for everybody."""

    recipe: TranslationRecipe
    prepared: Prepared
    folder: Path

    @classmethod
    def of(cls, size: str, folder: Path) -> Material:
        """Also in files, for those who know no recipes."""
        recipe = load_translation_recipe(RECIPE, [f"model.preset={size}"])
        prepared = prepare(recipe.data, recipe_folder=HERE, cache=default_cache())
        found = cls(recipe, prepared, folder)
        shape = transformer_shape(recipe.model, prepared.manifest.vocabulary)
        found.sizes.write_text(json.dumps(vars(shape)))
        found.batches.write_text("".join(json.dumps(step) + "\n" for step in whole_steps(recipe, prepared)))
        return found

    @property
    def sizes(self) -> Path:
        return self.folder / "sizes.json"

    @property
    def batches(self) -> Path:
        return self.folder / "batches.jsonl"


def whole_steps(recipe: TranslationRecipe, prepared: Prepared) -> Iterator[dict[str, list[list[int]]]]:
    """Steps in one batch each: who does not share a step out is not made to cut it up."""
    train = recipe.train.model_copy(update={"slots": 1})
    plan = plan_batches(recipe.model_copy(update={"train": train}), prepared)
    for number in range(NUM_BATCHES):
        (slot,) = plan.step(number).slots
        yield _as_lists(prepared, slot.corpus, slot.pairs)


def _as_lists(prepared: Prepared, corpus: int, pairs: Any) -> dict[str, list[list[int]]]:
    found = packed(prepared.train[corpus], pairs)
    return {
        side: [tokens[a:b].tolist() for a, b in pairwise(offsets.tolist())]
        for side, tokens, offsets in (
            ("source", found.source, found.source_offsets),
            ("target", found.target, found.target_offsets),
        )
    }


@dataclass(frozen=True)
class Tuning:
    """What an expert changes of a peer, beside bf16 autocast, and tcmalloc in place of malloc."""

    is_eager: bool = False
    """Attention as plain products, which short sentences on a CPU may be faster with."""
    workers: int = 1
    """Processes that share a step out and agree by torch's DistributedDataParallel."""


def peer(
    environment: str, material: Material, name: str, threads: int, tuning: Tuning | None = None
) -> Contender:
    """A peer as it comes, in float32, or tuned; its processes have so many threads each."""
    module = f"bench.peers.{environment.replace('-', '_')}"
    command = [str(python_of(environment)), "-m", module, str(material.sizes), str(material.batches)]
    variables = {
        **_clean_environment(),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",  # a page of deprecations, of GPU parts mostly
        "OMP_NUM_THREADS": str(threads),
    }
    if tuning is None:
        return Contender(name, [_start(command, variables)], is_needed=environment == HUGGING_FACE)
    command += ["--bf16", *(["--eager"] if tuning.is_eager else [])]
    variables |= {"LD_PRELOAD": TCMALLOC, "WORLD_SIZE": str(tuning.workers)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    ranks = range(tuning.workers)
    processes = [_start(command, {**variables, "RANK": str(rank)}) for rank in ranks]
    return Contender(name, processes, is_needed=tuning == Tuning())


def echelon(
    material: Material,
    name: str,
    *,
    workers: int = 1,
    threads: int = 1,
    slots: int | None = None,
    kernels: Literal["auto", "off"] = "auto",
) -> Contender:
    """Echelon's own workers, started with what its launcher gives them; a slot for each, if not told otherwise."""
    train = material.recipe.train.model_copy(update={"kernels": kernels, "slots": slots or workers})
    recipe = material.recipe.model_copy(update={"train": train})
    run = RunFolder(Path(tempfile.mkdtemp(dir=material.folder)))
    run.create()
    write_run(run, recipe, material.prepared)
    place = Placement(size=workers, port=_free_port(), threads=threads)
    program = (sys.executable, str(HERE / "echelon_worker.py"))
    specs = [render_worker(run, place, rank, workers, program=program) for rank in range(workers)]
    environment = _clean_environment()
    return Contender(name, [_start(spec.command, {**environment, **spec.environment}) for spec in specs])


def require_tcmalloc() -> None:
    """The dynamic linker only warns of a library that it cannot preload, and the peer would go untuned."""
    load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({TCMALLOC!r})"]
    if subprocess.run(load, check=False, stderr=subprocess.DEVNULL).returncode:
        raise SystemExit(
            f"{TCMALLOC} cannot be loaded; install it (Debian: apt install libtcmalloc-minimal4)"
        )


def install(environment: str, console: Console) -> None:
    """Make a peer's environment: exactly our torch, with what that needs, and exactly the list's packages."""
    folder, listed = PEERS / environment, HERE / "environments" / f"{environment}.txt"
    mark = folder / "installed"
    if mark.exists() and mark.read_text() == listed.read_text():
        return
    console.print(f"installing {environment} into {folder} ...", highlight=False)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for packages in ([TORCH], ["--no-deps", "--requirement", str(listed)]):
        pip = [str(python_of(environment)), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *packages], check=True)
    mark.write_text(listed.read_text())


def installed_others(console: Console) -> list[str]:
    """Environments of the peers that can be had here; of the others it is said why not."""
    found = []
    for environment, name in OTHERS.items():
        try:
            install(environment, console)
        except subprocess.CalledProcessError as error:
            console.print(f"{name} cannot be installed and is left out: {error}", highlight=False)
        else:
            found.append(environment)
    return found


def python_of(environment: str) -> Path:
    return PEERS / environment / "bin" / "python"


def _clean_environment() -> dict[str, str]:
    dropped = ("OMP_NUM_THREADS", "LD_PRELOAD", "MALLOC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
