"""Checkpoints as a disk sees them: which are good, how to spoil one, whether two hold the same.

Written without `echelon.train.checkpoint`, so that it judges from outside: a checkpoint is a folder step-N whose
files each have a sidecar NAME.checksum.json with the right digest.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import xxhash
from torch import Tensor

SIDECAR = ".checksum.json"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def good_checkpoints(checkpoints: Path) -> list[Path]:
    """Folders whose every file has its sidecar and its digest, oldest first. Files may vanish meanwhile."""
    folders = [path for path in checkpoints.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(filter(is_good, folders), key=step_of)


def is_good(folder: Path) -> bool:
    try:
        files = [file for file in folder.iterdir() if not file.name.startswith(".")]
        named = {file.name for file in files if not file.name.endswith(SIDECAR)}
        sealed = {file.name.removesuffix(SIDECAR) for file in files if file.name.endswith(SIDECAR)}
        return bool(named) and named == sealed and all(_digest_is_right(folder / name) for name in named)
    except (OSError, ValueError, KeyError):
        return False


def _digest_is_right(file: Path) -> bool:
    recorded = json.loads(file.with_name(file.name + SIDECAR).read_text())["xxh3_128"]
    return bool(xxhash.xxh3_128(file.read_bytes()).hexdigest() == recorded)


def spoil(folder: Path, dice: random.Random) -> str:
    """Damage one file of a checkpoint in place, as a failing disk or a careless hand does; says what was done."""
    file = dice.choice(sorted(file for file in folder.iterdir() if not file.name.startswith(".")))
    way = dice.choice(("bit flipped", "cut short", "deleted"))
    if way == "deleted":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        place = dice.randrange(len(content))
        if way == "bit flipped":
            content[place] ^= 1 << dice.randrange(8)
        with open(file, "r+b") as damaged:
            damaged.write(content[:place] if way == "cut short" else content)
            damaged.truncate(place if way == "cut short" else len(content))
    return f"{folder.name}/{file.name} {way}"


def set_trap(file: Path, trap: str) -> None:
    """Put something in a file's place that keeps its reader waiting, has no end, or is larger than any memory."""
    file.unlink(missing_ok=True)
    match trap:
        case "fifo":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "huge":
            with open(file, "wb") as sparse:
                sparse.truncate(2**42)


def tensors_of(folder: Path, pattern: str = "*.safetensors") -> dict[str, Tensor]:
    """Every tensor of a checkpoint's files, named FILE:TENSOR."""
    return {
        f"{file.name}:{name}": tensor
        for file in sorted(folder.glob(pattern))
        for name, tensor in safetensors.torch.load_file(file).items()
    }


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def differences(one: Path, two: Path) -> list[str]:
    """What differs between two checkpoints: names of tensors that are not equal to the bit, or keys of the state."""
    first, second = tensors_of(one), tensors_of(two)
    found = [
        name
        for name in sorted(first.keys() | second.keys())
        if name not in first or name not in second or not same_bits(first[name], second[name])
    ]
    states = state_of(one), state_of(two)
    keys = states[0].keys() | states[1].keys()
    return found + [f"state {key}" for key in sorted(keys) if states[0].get(key) != states[1].get(key)]


def same_bits(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)


def distance(one: Path, two: Path) -> float:
    """How far apart the weights of two checkpoints are, relative to their length."""
    first, second = tensors_of(one, "model*.safetensors"), tensors_of(two, "model*.safetensors")
    assert first.keys() == second.keys()
    apart = sum(float((first[name].double() - second[name].double()).square().sum()) for name in first)
    length = sum(float(tensor.double().square().sum()) for tensor in first.values())
    return float((apart / length) ** 0.5)
