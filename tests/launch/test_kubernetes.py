"""Manifests, checked against the schemas that Kubernetes and Kubeflow publish."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

from echelon.launch.kubernetes import KubernetesSpec, object_name, render_job, render_trainjob
from echelon.launch.site import Address, Place, find_place
from tests.conftest import RECIPE

PLAIN = KubernetesSpec("toy", "registry.example/echelon:1", RECIPE, nodes=2, workers=3)
WITH_GPUS = replace(
    PLAIN, name="Toy_Run.2", gpus_per_node=4, overrides=["train.steps=5", "name=$(HOME)"], retries=3
)
BOTH = pytest.mark.parametrize("spec", [PLAIN, WITH_GPUS], ids=["plain", "with GPUs"])


def documents(text: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@BOTH
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_the_manifests_of_a_job_are_valid(spec: KubernetesSpec, version: str) -> None:
    found = documents(render_job(spec))
    assert list(found) == ["ConfigMap", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Job"]
    for document in found.values():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_sees_mistakes() -> None:
    job = documents(render_job(PLAIN))["Job"]
    job["spec"]["completion"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.37", strict=True)


@BOTH
def test_a_trainjob_is_valid_and_nothing_in_it_is_unknown(spec: KubernetesSpec) -> None:
    found = documents(render_trainjob(spec))
    assert list(found) == ["ConfigMap", "PersistentVolumeClaim", "TrainJob"]
    trainjob = TrainerV1alpha1TrainJob.from_dict(found["TrainJob"])
    assert trainjob is not None
    assert trainjob.to_dict() == found["TrainJob"], "what its models do not know would be missing"
    for kind in ("ConfigMap", "PersistentVolumeClaim"):
        kubernetes_validate.validate(found[kind], "1.37", strict=True)


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def test_a_pods_process_finds_its_place_in_what_its_manifest_says() -> None:
    found = documents(render_job(PLAIN))
    pod, name = pod_of(found["Job"]), found["Job"]["metadata"]["name"]
    (container,) = pod["containers"]
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    place = find_place(environ | {"JOB_COMPLETION_INDEX": "1"})  # which Kubernetes itself adds
    assert place == Place("kubernetes", 1, 2, master=Address("toy-0.toy", 29500), is_host=True)
    # A pod of an Indexed Job is called JOB-INDEX, and known as that under its subdomain, the headless Service.
    service = found["Service"]
    assert f"{name}-0.{pod['subdomain']}" == environ["MASTER_ADDR"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["publishNotReadyAddresses"] is True, "pods meet before any of them is ready"


def test_all_pods_run_side_by_side_on_one_volume_with_the_recipe() -> None:
    found = documents(render_job(PLAIN))
    job, pod = found["Job"]["spec"], pod_of(found["Job"])
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    (container,) = pod["containers"]
    assert container["command"] == [
        *("echelon", "train", "/recipe/recipe.toml"),
        *("--run", "/echelon/runs/toy"),
        *("--workers", "3"),
    ]
    assert found["ConfigMap"]["data"]["recipe.toml"] == RECIPE
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["recipe"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    claim = found["PersistentVolumeClaim"]
    assert volumes["storage"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"recipe": "/recipe", "storage": "/echelon"}


def test_pods_that_saved_come_back_and_mistakes_end_the_job() -> None:
    job = documents(render_job(WITH_GPUS))["Job"]["spec"]
    rules = job["podFailurePolicy"]["rules"]
    by_status = {rule["onExitCodes"]["values"][0]: rule["action"] for rule in rules if "onExitCodes" in rule}
    assert by_status == {2: "FailJob", 75: "Ignore"}
    assert job["backoffLimit"] == 6, "three restarts of two pods"
    assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy allows no other"


def test_gpus_and_memory_for_them_are_asked_for() -> None:
    pod = pod_of(documents(render_job(WITH_GPUS))["Job"])
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    trainer = documents(render_trainjob(WITH_GPUS))["TrainJob"]["spec"]["trainer"]
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert trainer["numNodes"] == 2


def test_overrides_reach_the_command_as_they_are() -> None:
    command = pod_of(documents(render_job(WITH_GPUS))["Job"])["containers"][0]["command"]
    assert command[-4:] == ["--set", "train.steps=5", "--set", "name=$$(HOME)"], (
        "$$( is Kubernetes' way to say $("
    )


def test_only_the_pods_of_the_job_reach_it() -> None:
    policy = documents(render_job(PLAIN))["NetworkPolicy"]["spec"]
    own = {"matchLabels": {"batch.kubernetes.io/job-name": "toy"}}
    assert policy == {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}],
    }


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("toy", "toy"),
        ("Toy_Run.2", "toy-run-2"),
        ("ü-", "echelon"),
        ("a" * 80, "a" * 40),
        ("a" * 39 + "--b", "a" * 39),
    ],
)
def test_names_are_made_as_kubernetes_wants_them(name: str, made: str) -> None:
    assert object_name(name) == made
