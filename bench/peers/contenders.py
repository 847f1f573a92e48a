"""The programs that are compared, each a process that trains as many steps as it is told and waits in between."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from echelon.commands.training import write_run
from echelon.data.batches import packed
from echelon.data.planning import plan_batches
from echelon.data.prepare import default_cache, prepare
from echelon.data.prepared import Prepared
from echelon.launch.local import Placement, render_worker
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import transformer_shape
from echelon.runfolder import RunFolder

HERE = Path(__file__).parent
PEERS = default_cache() / "peers"
"""The peers' virtual environments."""
NUM_BATCHES = 200
TCMALLOC = "libtcmalloc_minimal.so.4"
HUGGING_FACE = "hugging-face"
PACKAGES = {HUGGING_FACE: ["transformers"]}
"""What is installed into each peer's environment, after torch."""


@dataclass
class Contender:
    """One way to train; several processes where it has several workers, of which the first answers."""

    name: str
    processes: list[subprocess.Popen[str]]
    answers: list[dict[str, Any]] = field(default_factory=list)

    def train(self, steps: int) -> dict[str, Any]:
        """Have it train and wait for what it says of it."""
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
    def of(cls, recipe_file: Path, folder: Path) -> Material:
        recipe = load_translation_recipe(recipe_file)
        prepared = prepare(recipe.data, recipe_folder=recipe_file.parent, cache=default_cache())
        return cls(recipe, prepared, folder)

    def write_sizes(self) -> Path:
        shape = transformer_shape(self.recipe.model, self.prepared.manifest.vocabulary)
        path = self.folder / "sizes.json"
        path.write_text(json.dumps(vars(shape)))
        return path

    def write_batches(self) -> Path:
        """Whole steps in one batch each: who does not share a step out is not made to cut it up."""
        train = self.recipe.train.model_copy(update={"slots": 1})
        plan = plan_batches(self.recipe.model_copy(update={"train": train}), self.prepared)
        path = self.folder / "batches.jsonl"
        with path.open("w") as file:
            for number in range(NUM_BATCHES):
                (slot,) = plan.step(number).slots
                file.write(json.dumps(_as_lists(self.prepared, slot.corpus, slot.pairs)) + "\n")
        return path


def _as_lists(prepared: Prepared, corpus: int, pairs: Any) -> dict[str, list[list[int]]]:
    found = packed(prepared.train[corpus], pairs)
    return {
        side: [tokens[a:b].tolist() for a, b in pairwise(offsets.tolist())]
        for side, tokens, offsets in (
            ("source", found.source, found.source_offsets),
            ("target", found.target, found.target_offsets),
        )
    }


def hugging_face(material: Material, name: str, *, is_tuned: bool, threads: int) -> Contender:
    """Marian as it comes, in float32; or tuned by hand: bf16 autocast, and tcmalloc in place of malloc."""
    command = [
        str(PEERS / HUGGING_FACE / "bin" / "python"),
        str(HERE / "hugging_face.py"),
        str(material.write_sizes()),
        str(material.write_batches()),
    ]
    environment = {**_clean_environment(), "OMP_NUM_THREADS": str(threads)}
    if is_tuned:
        command.append("--bf16")
        environment["LD_PRELOAD"] = TCMALLOC
    return Contender(name, [_start(command, environment)])


def echelon(
    material: Material, name: str, workers: int, threads: int, kernels: Literal["auto", "off"] = "auto"
) -> Contender:
    """Echelon's own workers, started with what its launcher gives them."""
    train = material.recipe.train.model_copy(update={"kernels": kernels})
    recipe = material.recipe.model_copy(update={"train": train})
    run = RunFolder(Path(tempfile.mkdtemp(dir=material.folder)))
    run.create()
    write_run(run, recipe, material.prepared)
    place = Placement(size=workers, port=_free_port(), threads=threads)
    program = (sys.executable, str(HERE / "echelon_worker.py"))
    specs = [render_worker(run, place, rank, workers, program=program) for rank in range(workers)]
    environment = _clean_environment()
    return Contender(name, [_start(spec.command, {**environment, **spec.environment}) for spec in specs])


def install(peer: str, console: Console) -> None:
    """Make the peer's environment: exactly our torch first, so that the peer cannot bring another."""
    folder = PEERS / peer
    if (folder / "installed").exists():
        return
    console.print(f"installing {peer} into {folder} ...", highlight=False)
    constraints = str(HERE.parents[1] / "constraints.txt")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for packages in (["torch==2.13.0"], PACKAGES[peer]):
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--constraint", constraints]
        subprocess.run([*pip, *packages], check=True)
    (folder / "installed").touch()


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
