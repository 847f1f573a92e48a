"""An old AI Platform configuration as one for Vertex AI: read, never executed; a pure function."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from echelon.errors import UserError


@dataclass(frozen=True)
class Hardware:
    """What one of AI Platform's own machine names meant."""

    machine: str
    gpu: str = ""
    gpus: int = 0


_MACHINES = {
    "standard": Hardware("n1-standard-4"),
    "large_model": Hardware("n1-highmem-8"),
    "complex_model_s": Hardware("n1-highcpu-8"),
    "complex_model_m": Hardware("n1-highcpu-16"),
    "complex_model_l": Hardware("n1-highcpu-32"),
    "standard_gpu": Hardware("n1-standard-8", "K80", 1),
    "complex_model_m_gpu": Hardware("n1-standard-16", "K80", 4),
    "complex_model_l_gpu": Hardware("n1-standard-32", "K80", 8),
    "standard_p100": Hardware("n1-standard-8", "P100", 1),
    "complex_model_m_p100": Hardware("n1-standard-16", "P100", 4),
    "standard_v100": Hardware("n1-standard-8", "V100", 1),
    "large_model_v100": Hardware("n1-highmem-8", "V100", 1),
    "complex_model_m_v100": Hardware("n1-standard-16", "V100", 4),
    "complex_model_l_v100": Hardware("n1-standard-32", "V100", 8),
}
_TIERS: dict[str, dict[str, Any]] = {
    "BASIC": {"masterType": "n1-standard-4"},
    "BASIC_GPU": {"masterType": "standard_gpu"},
    "STANDARD_1": {
        "masterType": "n1-highcpu-8",
        "workerType": "n1-highcpu-8",
        "workerCount": 4,
        "parameterServerType": "n1-standard-4",
        "parameterServerCount": 3,
    },
    "PREMIUM_1": {
        "masterType": "n1-highcpu-16",
        "workerType": "n1-highcpu-16",
        "workerCount": 19,
        "parameterServerType": "n1-highmem-8",
        "parameterServerCount": 11,
    },
}
_ROLES = {
    "master": "chief",
    "worker": "workers",
    "parameterServer": "parameter_servers",
    "evaluator": "evaluator",
}
_KNOWN = {
    "scaleTier",
    *(f"{role}{what}" for role in _ROLES for what in ("Type", "Count", "Config")),
    "region",
    "jobDir",
    "packageUris",
    "pythonModule",
    "args",
    "runtimeVersion",
    "pythonVersion",
    "scheduling",
}
_GPUS = {"T4": "NVIDIA_TESLA_T4", "P100": "NVIDIA_TESLA_P100", "V100": "NVIDIA_TESLA_V100"}
_MOST_T4 = 4


def convert(document: Any) -> tuple[dict[str, Any], list[str]]:
    """The [chief], [workers], ... of a VertexSpec, with region and hours if they are given, and notes.

    UserError if the document is not such a configuration.
    """
    given = document.get("trainingInput", document) if isinstance(document, dict) else None
    if not isinstance(given, dict) or not _KNOWN & set(given):
        raise UserError("this is no AI Platform configuration: it has no trainingInput with a scaleTier")
    notes = [f"{name} is not understood, and left out" for name in sorted(map(str, given.keys() - _KNOWN))]
    tier = str(given.get("scaleTier", "BASIC"))
    if tier not in (*_TIERS, "CUSTOM"):
        raise UserError(
            f"scaleTier {tier} is not one that Echelon can train on; use {', '.join([*_TIERS, 'CUSTOM'])}"
        )
    settings = given if tier == "CUSTOM" else {**given, **_TIERS[tier]}
    spec: dict[str, Any] = {}
    if "region" in given:
        spec["region"] = str(given["region"])
    scheduling = given.get("scheduling", {})
    if not isinstance(scheduling, dict):
        raise UserError("scheduling has no keys, such as maxRunningTime; write them below it, or remove it")
    limit = str(scheduling.get("maxRunningTime", "")).removesuffix("s")
    if re.fullmatch("[0-9]{1,9}", limit):
        spec["hours"] = int(limit) / 3600
    for role, pool in _ROLES.items():
        found = _convert_pool(role, settings, notes)
        if found:
            spec[pool] = found
    if "chief" not in spec:
        raise UserError("scaleTier CUSTOM needs a masterType")
    if "parameter_servers" in spec:
        notes.append(
            "parameter servers take part as hosts that train: Echelon's workers agree on weights among themselves"
        )
    notes += [
        f"{name} is left out: Echelon's image and recipe take its place"
        for name in ("packageUris", "pythonModule", "args", "runtimeVersion", "jobDir")
        if name in given
    ]
    return spec, notes


def _convert_pool(role: str, settings: dict[str, Any], notes: list[str]) -> dict[str, Any] | None:
    kind = settings.get(f"{role}Type")
    count = settings.get(f"{role}Count", 1 if role in ("master", "evaluator") and kind else 0)
    if kind is not None and role == "parameterServer" and f"{role}Count" not in settings:
        count = 1  # the type alone was enough
    machines = _read_count(f"{role}Count", count)
    if machines == 0:
        return None
    if not isinstance(kind, str):
        raise UserError(f"{role}Count is {count}, but {role}Type is missing")
    hardware = _MACHINES.get(kind, Hardware(kind))
    config = settings.get(f"{role}Config")
    added = config.get("acceleratorConfig", {}) if isinstance(config, dict) else {}
    if isinstance(added, dict) and added:
        gpus = _read_count("acceleratorConfig.count", added.get("count", 1))
        hardware = Hardware(hardware.machine, str(added.get("type", "")).split("_")[-1], gpus)
    pool: dict[str, Any] = {"machine": hardware.machine, "count": machines}
    if hardware.gpu:
        pool |= _convert_gpu(kind, hardware, notes)
    return pool


def _read_count(key: str, value: Any) -> int:
    """A number, or a text that is one; UserError otherwise."""
    if not isinstance(value, int | str) or not re.fullmatch("[0-9]{1,9}", str(value)):
        raise UserError(f"{key} is {str(value)[:40]!r}, not a number")
    return int(value)


def _convert_gpu(kind: str, hardware: Hardware, notes: list[str]) -> dict[str, Any]:
    if hardware.gpu in _GPUS:
        return {"accelerator": _GPUS[hardware.gpu], "accelerators": hardware.gpus}
    count = min(hardware.gpus, _MOST_T4)
    notes.append(
        f"{kind}: Google Cloud has no {hardware.gpu} any more; {count} x T4 a machine instead of {hardware.gpus} x "
        f"{hardware.gpu}"
    )
    return {"accelerator": _GPUS["T4"], "accelerators": count}
