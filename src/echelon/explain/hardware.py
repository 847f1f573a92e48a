"""Peak performance of devices: a dated list (hardware.toml), extended by the user's own."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from echelon.errors import UserError

HARDWARE_VARIABLE = "ECHELON_HARDWARE"
NumberFormat = Literal["float32", "half"]


@dataclass(frozen=True)
class GpuSpec:
    """A GPU of the list."""

    float32: float
    half: float
    memory_gib: float
    memory_gb_s: float
    inner_gb_s: float
    bf16: bool = True
    """Whether it has units for bfloat16; `half` is that of float16 if not."""


@dataclass(frozen=True)
class Core:
    """One core of a processor."""

    float32: float
    half: float
    memory_gb_s: float


@dataclass(frozen=True)
class Catalogue:
    """Everything in the list."""

    date: str
    source: str
    core: Core
    gpus: dict[str, GpuSpec]


@dataclass(frozen=True)
class Device:
    """What one worker computes with."""

    name: str
    float32_flops: float
    half_flops: float
    memory_bytes_per_s: float
    memory_bytes: float | None
    inner_bytes_per_s: float
    """Between the devices of one host."""
    is_gpu: bool = True
    has_bf16: bool = True
    """Whether `half_flops` holds for bfloat16 too."""

    def peak(self, number_format: NumberFormat) -> float:
        return self.half_flops if number_format == "half" else self.float32_flops


def find_gpu(name: str) -> Device | None:
    """The GPU of that name, whatever its case; None if the list has none."""
    found = {key.lower(): key for key in catalogue().gpus}
    key = found.get(name.lower())
    if key is None:
        return None
    gpu = catalogue().gpus[key]
    return Device(
        key,
        gpu.float32 * 1e12,
        gpu.half * 1e12,
        gpu.memory_gb_s * 1e9,
        gpu.memory_gib * 2**30,
        gpu.inner_gb_s * 1e9,
        has_bf16=gpu.bf16,
    )


def find_gpu_like(description: str) -> Device | None:
    """The GPU that a driver calls "Tesla T4" or "NVIDIA A100-SXM4-40GB": the longest name whose words are all in it."""
    words = _words(description)
    alike = [key for key in catalogue().gpus if _words(key) <= words]
    return find_gpu(max(alike, key=len)) if alike else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def suggest_gpus(name: str) -> str:
    """Similar names, for an error message."""
    near = difflib.get_close_matches(name.upper(), catalogue().gpus, n=3, cutoff=0.5)
    return ", ".join(near or catalogue().gpus)


def processor(cores: float, memory_bytes: float | None = None) -> Device:
    """`cores` cores as one device."""
    core = catalogue().core
    words = "1 core" if cores == 1 else f"{cores:g} cores"
    return Device(
        words,
        cores * core.float32 * 1e12,
        cores * core.half * 1e12,
        core.memory_gb_s * 1e9 * max(1.0, cores / 2),
        memory_bytes,
        inner_bytes_per_s=1.2e9,  # gloo over loopback
        is_gpu=False,
    )


def catalogue() -> Catalogue:
    """The whole list, with what the file in $ECHELON_HARDWARE adds or replaces."""
    return _load(os.environ.get(HARDWARE_VARIABLE))


_CATALOGUE = TypeAdapter(Catalogue)


@cache
def _load(own: str | None) -> Catalogue:
    document = tomllib.loads(files("echelon.explain").joinpath("hardware.toml").read_text())
    if not own:
        return _CATALOGUE.validate_python(document)
    try:
        more = tomllib.loads(Path(own).read_text())
        gpus = document["gpus"] | more.pop("gpus", {})
        return _CATALOGUE.validate_python(document | more | {"gpus": gpus})
    except OSError as error:
        raise UserError(f"{own}: cannot be read: {error.strerror} ({HARDWARE_VARIABLE})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{own}: is not TOML: {error} ({HARDWARE_VARIABLE})") from None
    except (ValidationError, TypeError, AttributeError) as error:
        raise UserError(f"{own}: is not a list of hardware: {error} ({HARDWARE_VARIABLE})") from None
