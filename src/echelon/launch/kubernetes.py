"""Kubernetes: manifests for an Indexed Job with its headless Service, and for Kubeflow Trainer's TrainJob.

Every pod is a host of the group. Pod 0 is found by its name, which the Service makes known; the run folder and the
data lie on a volume that all pods share.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echelon.errors import INTERRUPTED_STATUS
from echelon.launch.site import NODES_VARIABLE
from echelon.launch.yaml import to_yaml

_PORT = 29500
_STORAGE = "/echelon"
_CLAIM = "echelon"
_RECIPE_FOLDER, _RECIPE_FILE = "/recipe", "recipe.toml"
_SAVING_S = 300
"""How long an evicted pod may take to save."""
_RUNTIME = "torch-distributed"
"""The runtime that Kubeflow Trainer brings along: its pods are told who they are, as torchrun would want it."""

KubernetesManifest = dict[str, Any]


@dataclass(frozen=True)
class KubernetesSpec:
    """What to run, in how many pods, with which resources."""

    name: str
    image: str
    recipe: str
    """The recipe's text."""
    nodes: int = 1
    workers: int = 1
    """Of each pod."""
    gpus_per_node: int | None = None
    overrides: Sequence[str] = ()
    retries: int = 0
    """How often training that failed is tried again."""


def render_job(spec: KubernetesSpec) -> str:
    """An Indexed Job and everything it needs, as one YAML file."""
    return to_yaml([_config_map(spec), _claim(), _service(spec), _network_policy(spec), _job(spec)])


def render_trainjob(spec: KubernetesSpec) -> str:
    """A Kubeflow TrainJob and everything it needs, as one YAML file."""
    return to_yaml([_config_map(spec), _claim(), _trainjob(spec)])


def object_name(name: str) -> str:
    """A recipe's name as Kubernetes wants it: lower case, digits and hyphens, short enough for a pod's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "echelon"


def _config_map(spec: KubernetesSpec) -> KubernetesManifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{object_name(spec.name)}-recipe"},
        "data": {_RECIPE_FILE: spec.recipe},
    }


def _claim() -> KubernetesManifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": _CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}},
    }


def _service(spec: KubernetesSpec) -> KubernetesManifest:
    name = object_name(spec.name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(name),
            "ports": [{"name": "master", "port": _PORT}],
        },
    }


def _network_policy(spec: KubernetesSpec) -> KubernetesManifest:
    """Only the pods of a training reach each other."""
    selector = {"matchLabels": _labels(object_name(spec.name))}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": object_name(spec.name)},
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": selector}]}],
        },
    }


def _labels(name: str) -> dict[str, str]:
    return {"batch.kubernetes.io/job-name": name}


def _job(spec: KubernetesSpec) -> KubernetesManifest:
    name = object_name(spec.name)
    addresses = {
        NODES_VARIABLE: str(spec.nodes),
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(_PORT),
    }
    container = {
        "name": "train",
        "image": spec.image,
        "command": _command(spec),
        "env": _variables({**addresses, **_folders()}),
        **({"resources": _resources(spec)} if spec.gpus_per_node else {}),
        "volumeMounts": _mounts(spec),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimit": spec.retries * spec.nodes,
            "podFailurePolicy": {"rules": _failure_rules(container["name"])},
            "template": {
                "spec": {
                    "subdomain": name,
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": _SAVING_S,
                    "automountServiceAccountToken": False,
                    "containers": [container],
                    "volumes": _volumes(spec),
                }
            },
        },
    }


def _failure_rules(container: Any) -> list[KubernetesManifest]:
    """Pods that saved and left are started again; a failure that a restart cannot fix ends the job."""
    return [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": container, "operator": "In", "values": [2]},
        },
        {
            "action": "Ignore",
            "onExitCodes": {"containerName": container, "operator": "In", "values": [INTERRUPTED_STATUS]},
        },
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _trainjob(spec: KubernetesSpec) -> KubernetesManifest:
    pod = {
        "terminationGracePeriodSeconds": _SAVING_S,
        "containers": [{"name": "node", "volumeMounts": _mounts(spec)}],
        "volumes": _volumes(spec),
    }
    patch = {"template": {"spec": {"replicatedJobs": [_replicated_job(pod)]}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": object_name(spec.name)},
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            "trainer": {
                "image": spec.image,
                "command": _command(spec),
                "numNodes": spec.nodes,
                "env": _variables(_folders()),
                **({"resourcesPerNode": _resources(spec)} if spec.gpus_per_node else {}),
            },
            "runtimePatches": [{"manager": "echelon", "trainingRuntimeSpec": patch}],
        },
    }


def _replicated_job(pod: KubernetesManifest) -> KubernetesManifest:
    return {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}


def _command(spec: KubernetesSpec) -> list[str]:
    # $(NAME) would be replaced, and $$ stands for $.
    overrides = [word for override in spec.overrides for word in ("--set", override.replace("$(", "$$("))]
    run = f"{_STORAGE}/runs/{spec.name}"
    recipe = f"{_RECIPE_FOLDER}/{_RECIPE_FILE}"
    return ["echelon", "train", recipe, "--run", run, "--workers", str(spec.workers), *overrides]


def _folders() -> dict[str, str]:
    return {"ECHELON_DATA": f"{_STORAGE}/data", "ECHELON_CACHE": f"{_STORAGE}/cache"}


def _variables(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _resources(spec: KubernetesSpec) -> KubernetesManifest:
    return {"limits": {"nvidia.com/gpu": str(spec.gpus_per_node)}}


def _mounts(spec: KubernetesSpec) -> list[dict[str, str]]:
    mounts = [
        {"name": "recipe", "mountPath": _RECIPE_FOLDER},
        {"name": "storage", "mountPath": _STORAGE},
    ]
    return [*mounts, {"name": "shared-memory", "mountPath": "/dev/shm"}] if spec.gpus_per_node else mounts


def _volumes(spec: KubernetesSpec) -> list[KubernetesManifest]:
    volumes: list[KubernetesManifest] = [
        {"name": "recipe", "configMap": {"name": f"{object_name(spec.name)}-recipe"}},
        {"name": "storage", "persistentVolumeClaim": {"claimName": _CLAIM}},
    ]
    # NCCL passes tensors between a pod's GPUs through it, and 64 MB, the default, is too little.
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    return [*volumes, memory] if spec.gpus_per_node else volumes
