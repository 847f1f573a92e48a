"""Jobs for Vertex AI: rendered as Google's own types take them, submitted and followed against a small server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import google.auth.exceptions
import pytest
import requests

from echelon.cloud import vertex_jobs
from echelon.cloud.cluster_spec import parse_spec
from echelon.cloud.vertex import VertexSpec, hourly, render_job
from echelon.cloud.vertex_jobs import VertexJobs
from echelon.errors import CloudError, UserError
from tests.waiting import NEVER_S

MINIMAL = {
    "name": "cifar",
    "project": "mine",
    "image": "us-docker.pkg.dev/mine/echelon/echelon:1",
    "bucket": "gs://mine/training",
    "chief": {"machine": "n1-standard-16"},
}


def sample(**changes: Any) -> VertexSpec:
    return parse_spec({**MINIMAL, **changes}, VertexSpec, "vertex.toml")


ALL_POOLS = {
    "hours": 2,
    "workers": {
        "machine": "n1-standard-8",
        "count": 3,
        "accelerator": "NVIDIA_TESLA_T4",
        "accelerators": 2,
    },
    "parameter_servers": {"machine": "n1-highmem-8", "count": 2},
    "evaluator": {"machine": "n1-standard-4"},
}


def test_a_job_in_full() -> None:
    job = render_job(sample(), ("train.steps=100",))
    assert job == {
        "displayName": "cifar",
        "jobSpec": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n1-standard-16"},
                    "replicaCount": "1",
                    "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
                    "containerSpec": {
                        "imageUri": "us-docker.pkg.dev/mine/echelon/echelon:1",
                        "command": [
                            "echelon",
                            "train",
                            "gs://mine/training/recipes/cifar.toml",
                            "--run",
                            "/tmp/runs/cifar",
                        ],
                        "args": [
                            "--set",
                            "checkpoint.mirror=gs://mine/training/runs/cifar",
                            "--set",
                            "train.steps=100",
                        ],
                    },
                }
            ],
            "scheduling": {"timeout": "3600s", "restartJobOnWorkerRestart": True},
            "baseOutputDirectory": {"outputUriPrefix": "gs://mine/training/runs/cifar"},
        },
        "labels": {"echelon": "cifar"},
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        ALL_POOLS,
        {"spot": True, "service_account": "x@mine.iam.gserviceaccount.com"},
        {"evaluator": {"machine": "n1-standard-4"}},
    ],
)
def test_googles_own_types_take_the_job(changes: dict[str, Any]) -> None:
    from google.cloud.aiplatform_v1 import types

    spec = sample(**changes)
    job = types.CustomJob.from_json(json.dumps(render_job(spec)), ignore_unknown_fields=False)
    pools = job.job_spec.worker_pool_specs
    assert pools[0].replica_count == 1
    assert job.job_spec.scheduling.timeout.seconds == spec.hours * 3600
    if changes == ALL_POOLS:
        assert [pool.replica_count for pool in pools] == [1, 3, 2, 1]
        assert pools[1].machine_spec.accelerator_type.name == "NVIDIA_TESLA_T4"
        assert pools[1].machine_spec.accelerator_count == 2


def test_an_empty_pool_keeps_its_place() -> None:
    job = render_job(sample(evaluator={"machine": "n1-standard-4"}))
    pools = job["jobSpec"]["workerPoolSpecs"]
    assert pools[1:3] == [{}, {}]
    assert pools[3]["machineSpec"] == {"machineType": "n1-standard-4"}


def test_what_a_job_costs() -> None:
    assert hourly(sample()) == pytest.approx(0.874)
    assert hourly(sample(**ALL_POOLS)) == pytest.approx(
        0.874 + 3 * (0.437 + 2 * 0.4025) + 2 * 0.5442 + 0.2185
    )
    assert hourly(sample(chief={"machine": "m9-odd-1"})) is None


def test_a_wrong_bucket_and_two_chiefs_are_refused_together() -> None:
    with pytest.raises(UserError, match=r"(?s)2 problems.*gs://bucket.*exactly one chief"):
        sample(bucket="s3://mine", chief={"machine": "n1-standard-4", "count": 2})


class FakeVertex(BaseHTTPRequestHandler):
    """Answers as Vertex AI and its logs do, for one job that ends after three looks."""

    jobs: ClassVar[dict[str, dict[str, Any]]] = {}
    looks = 0
    ends_as = "JOB_STATE_SUCCEEDED"
    faults: ClassVar[dict[str, list[int]]] = {}
    """With what statuses the next requests for what ends so are answered; 0: not at all."""

    def _fails(self) -> bool:
        for ending, statuses in self.faults.items():
            if self.path.endswith(ending) and statuses:
                status = statuses.pop(0)
                if status:
                    self._answer(status, {"error": {"message": "not now"}})
                return True
        return False

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_POST(self) -> None:
        body, name = self._body(), "projects/mine/locations/us-central1/customJobs/7"
        if self._fails():
            return
        if self.path == "/v2/entries:list":
            first = [{"textPayload": "step 1", "timestamp": "2026-01-01T00:00:00Z"}]
            self._answer(200, {"entries": [] if "timestamp>" in body["filter"] else first})
        elif self.path.endswith(":cancel"):
            self.jobs[name]["state"] = "JOB_STATE_CANCELLED"
            self._answer(200, {})
        elif not body["jobSpec"]["workerPoolSpecs"]:
            self._answer(400, {"error": {"message": "no pools"}})
        else:
            self.jobs[name] = {"name": name, "state": "JOB_STATE_RUNNING", **body}
            self._answer(200, self.jobs[name])

    def do_GET(self) -> None:
        if self._fails():
            return
        if "?" in self.path:
            self._answer(200, {"customJobs": list(self.jobs.values())})
            return
        type(self).looks += 1
        job = self.jobs[self.path.removeprefix("/v1/")]
        if self.looks >= 3 and job["state"] == "JOB_STATE_RUNNING":
            job |= {"state": self.ends_as, "error": {"message": "out of memory"}}
        self._answer(200, job)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[VertexJobs]:
    monkeypatch.setattr(vertex_jobs, "_POLL_S", 0.01)
    FakeVertex.jobs, FakeVertex.looks, FakeVertex.ends_as = {}, 0, "JOB_STATE_SUCCEEDED"
    FakeVertex.faults = {}
    server = HTTPServer(("127.0.0.1", 0), FakeVertex)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with requests.Session() as session:
        yield VertexJobs("mine", "us-central1", session, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_job_is_submitted_and_followed_to_its_end(jobs: VertexJobs) -> None:
    name = jobs.submit(render_job(sample()))
    lines: list[str] = []
    assert jobs.follow(name, lines.append, limit_s=NEVER_S) == "JOB_STATE_SUCCEEDED"
    assert lines == ["step 1"], "each line once"


def test_a_job_is_cancelled_when_its_time_is_over(jobs: VertexJobs) -> None:
    name = jobs.submit(render_job(sample()))
    FakeVertex.ends_as = "JOB_STATE_RUNNING"
    lines: list[str] = []
    assert jobs.follow(name, lines.append, limit_s=0) == "JOB_STATE_CANCELLED"
    assert "the time limit is over: cancelling the job" in lines


def test_a_failed_job_says_why(jobs: VertexJobs) -> None:
    name = jobs.submit(render_job(sample()))
    FakeVertex.ends_as = "JOB_STATE_FAILED"
    with pytest.raises(CloudError, match="out of memory"):
        jobs.follow(name, lambda line: None, limit_s=NEVER_S)


def test_requests_that_fail_do_not_end_the_following(jobs: VertexJobs) -> None:
    name = jobs.submit(render_job(sample()))
    FakeVertex.faults = {"customJobs/7": [503, 0, 429], "entries:list": [500]}
    lines: list[str] = []
    assert jobs.follow(name, lines.append, limit_s=NEVER_S) == "JOB_STATE_SUCCEEDED"
    assert lines == ["step 1"]
    assert not any(FakeVertex.faults.values())


def test_a_cancelling_that_fails_is_repeated(jobs: VertexJobs) -> None:
    name = jobs.submit(render_job(sample()))
    FakeVertex.ends_as = "JOB_STATE_RUNNING"
    FakeVertex.faults = {":cancel": [503, 503]}
    assert jobs.follow(name, lambda line: None, limit_s=0) == "JOB_STATE_CANCELLED"


@pytest.mark.parametrize(("patience_s", "faults"), [(600.0, [503, 403]), (0.0, [503])])
def test_who_follows_a_job_no_more_is_told_how_to_cancel_it(
    jobs: VertexJobs, monkeypatch: pytest.MonkeyPatch, patience_s: float, faults: list[int]
) -> None:
    monkeypatch.setattr(vertex_jobs, "_PATIENCE_S", patience_s)
    name = jobs.submit(render_job(sample()))
    FakeVertex.faults = {"customJobs/7": [*faults]}
    with pytest.raises(CloudError, match=r"(?s)not now.*customJobs/7 may go on; `echelon cloud down"):
        jobs.follow(name, lambda line: None, limit_s=NEVER_S)
    assert FakeVertex.faults == {"customJobs/7": []}


@pytest.mark.parametrize(("kind", "is_followed"), [("TransportError", True), ("RefreshError", False)])
def test_a_token_that_cannot_be_renewed_is_a_failed_request(
    jobs: VertexJobs, monkeypatch: pytest.MonkeyPatch, kind: str, is_followed: bool
) -> None:
    name = jobs.submit(render_job(sample()))
    problems, request = [getattr(google.auth.exceptions, kind)("no token")], jobs._session.request

    def ask(*arguments: Any, **more: Any) -> Any:
        if problems:
            raise problems.pop()
        return request(*arguments, **more)

    monkeypatch.setattr(jobs._session, "request", ask)
    if is_followed:
        assert jobs.follow(name, lambda line: None, limit_s=NEVER_S) == "JOB_STATE_SUCCEEDED"
    else:
        with pytest.raises(CloudError, match=r"(?s)application-default login.*may go on"):
            jobs.follow(name, lambda line: None, limit_s=NEVER_S)


def test_jobs_are_found_by_name_while_they_run(jobs: VertexJobs) -> None:
    name = jobs.submit(render_job(sample()))
    assert [job["name"] for job in jobs.find("cifar")] == [name]
    jobs.cancel(name)
    assert jobs.find("cifar") == []


def test_a_refusal_has_googles_words(jobs: VertexJobs) -> None:
    job = render_job(sample())
    job["jobSpec"]["workerPoolSpecs"] = []
    with pytest.raises(CloudError, match=r"400.*no pools"):
        jobs.submit(job)
