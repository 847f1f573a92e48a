"""Jobs of Vertex AI: submitted, followed and cancelled over its REST interface, with the user's own credentials."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from echelon.cloud.vertex import VertexSpec
from echelon.errors import CloudError, UserError
from echelon.extras import install_hint

_POLL_S = 10.0
_PATIENCE_S = 600.0
"""How long Google Cloud may be unreachable before following a job ends."""
_REFUSALS = ("401", "403", "404")
"""HTTP statuses that a retry does not change."""
_OVER = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")
_LOGS = "https://logging.googleapis.com/v2/entries:list"


class VertexJobs:
    """The custom jobs of one project and region; `session` is a requests.Session that has the user's credentials."""

    def __init__(self, project: str, region: str, session: Any, address: str | None = None) -> None:
        host = address or f"https://{region}-aiplatform.googleapis.com"
        self._address = f"{host}/v1"
        self._logs = f"{address}/v2/entries:list" if address else _LOGS
        self._parent = f"projects/{project}/locations/{region}"
        self._project = project
        self._session = session

    def submit(self, job: dict[str, Any]) -> str:
        """Start a job; return its full name."""
        return str(self._call("POST", f"{self._parent}/customJobs", json=job)["name"])

    def cancel(self, name: str) -> None:
        """End a job; no error if it is over."""
        self._call("POST", f"{name}:cancel", json={})

    def find(self, display_name: str) -> list[dict[str, Any]]:
        """The jobs of one of our names that are not over."""
        found = self._call(
            "GET", f"{self._parent}/customJobs", params={"filter": f'displayName="{display_name}"'}
        ).get("customJobs", [])
        return [
            job for job in found if job.get("state") not in _OVER and job.get("displayName") == display_name
        ]

    def follow(self, name: str, tell: Callable[[str], None], limit_s: float) -> str:
        """Show the job's log until it is over, and return its state; after `limit_s` it is cancelled.

        Requests that fail are made again for some minutes; CloudError if that does not help.
        """
        answered = time.monotonic()
        deadline, seen = answered + limit_s, ""
        while True:
            try:
                job = self._call("GET", name)
                seen = self._tell_logs(name, seen, tell)
                if time.monotonic() > deadline and job.get("state") not in _OVER:
                    self.cancel(name)
                    tell("the time limit is over: cancelling the job")
                    deadline = float("inf")
                answered = time.monotonic()
            except CloudError as error:
                if error.code in _REFUSALS or time.monotonic() - answered > _PATIENCE_S:
                    raise CloudError(
                        f"{error}\n{name} may go on; `echelon cloud down FILE.TOML` cancels it", error.code
                    ) from None
                job = {}
            state = str(job.get("state", ""))
            if state == "JOB_STATE_FAILED":
                raise CloudError(f"{name} has failed: {job.get('error', {}).get('message', 'no word')}")
            if state in _OVER:
                return state
            time.sleep(_POLL_S)

    def _tell_logs(self, name: str, since: str, tell: Callable[[str], None]) -> str:
        number = name.rpartition("/")[2]
        after = f' AND timestamp>"{since}"' if since else ""
        entries = self._ask(
            "POST",
            self._logs,
            json={
                "resourceNames": [f"projects/{self._project}"],
                "filter": f'resource.labels.job_id="{number}"{after}',
                "orderBy": "timestamp asc",
            },
        ).get("entries", [])
        for entry in entries:
            tell(str(entry.get("textPayload") or entry.get("jsonPayload", {}).get("message", "")))
        return str(entries[-1]["timestamp"]) if entries else since

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        return self._ask(method, f"{self._address}/{path}", **arguments)

    def _ask(self, method: str, url: str, **arguments: Any) -> dict[str, Any]:
        try:
            answer = self._session.request(method, url, timeout=60, **arguments)
        except OSError as error:
            raise CloudError(f"Google Cloud cannot be reached: {error}") from None
        except _auth_errors() as error:
            raise _explain(error) from None
        if answer.status_code >= 400:
            status = str(answer.status_code)
            raise CloudError(f"Google Cloud has refused ({status}): {_message(answer)}", status)
        return dict(answer.json())


def _auth_errors() -> tuple[type[Exception], ...]:
    """What google-auth raises when it asks for a new token, as it does every hour; nothing if it is not here."""
    try:
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        return ()
    return (GoogleAuthError,)


def _explain(error: Exception) -> CloudError:
    from google.auth.exceptions import TransportError

    if isinstance(error, TransportError) or getattr(error, "retryable", False):
        return CloudError(f"Google Cloud cannot be reached: {error}")
    return CloudError(
        f"Google Cloud does not accept your credentials: {error}; `gcloud auth application-default login` sets them",
        "401",
    )


def _message(answer: Any) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(answer.text)[:300]


def open_jobs(spec: VertexSpec) -> VertexJobs:
    """Open them with the credentials of `gcloud auth application-default login`."""
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from google.auth.transport.requests import AuthorizedSession
    except ImportError:
        raise UserError(f"jobs on Google Cloud need google-auth: {install_hint('gcp')}") from None
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except DefaultCredentialsError:
        raise UserError(
            "there are no Google Cloud credentials here; `gcloud auth application-default login` sets them"
        ) from None
    session: Any = AuthorizedSession
    return VertexJobs(spec.project, spec.region, session(credentials))
