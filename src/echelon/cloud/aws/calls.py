"""Calls to AWS through plain boto3: credentials, profiles and endpoints are the user's own.

What AWS answers because it is busy, and not because of what it was asked, is dealt with here and nowhere else. Every
call that makes something carries a name or a token, so that it may be sent again when its answer was lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from echelon.errors import CloudError, UserError
from echelon.extras import install_hint

THROTTLED = (
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "SlowDown",
)
"""Throttled, perhaps by others in the account: repeated for as long as it takes."""
_FAILED_THERE = (
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "InternalServiceErrorException",
    "ServiceFailure",
    "ServiceFailureException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "Unavailable",
)
"""As good as no answer: the request may have been carried out. Not told by the HTTP status: a zone that has no machines
left answers with 500."""
NO_CAPACITY = ("InsufficientInstanceCapacity", "InsufficientHostCapacity", "Unsupported")
OVER_QUOTA = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded")
NOT_FOUND = (
    "InvalidGroup.NotFound",
    "InvalidInstanceID.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidPlacementGroup.Unknown",
    "FileSystemNotFound",
    "MountTargetNotFound",
    "SecurityGroupNotFound",
    "NoSuchEntity",
    "NoSuchEntityException",
)
_REMEDIES = {
    "SpotMaxPriceTooLow": "spot machines cost more now than the budget allows; raise `budget`, or try again later",
    "ExpiredToken": "your credentials have expired; log in again (`aws sso login`), then give the same command again",
    "RequestExpired": "your credentials or this machine's clock are out of date",
    "ExpiredTokenException": "your credentials have expired; log in again, then give the same command again",
    "AuthFailure": "your credentials are not accepted; see `aws sts get-caller-identity`",
    "UnauthorizedOperation": "your user may not do this; docs/cloud.md has the policy it needs",
    "AccessDenied": "your user may not do this; docs/cloud.md has the policy it needs",
    "AccessDeniedException": "your user may not do this; docs/cloud.md has the policy it needs",
}
_POLL_S = 3.0
_LONGEST_PAUSE_S = 20.0
_UNREACHABLE_S = 60.0
"""How long to wait for an answer: a laptop may have changed its network."""


@dataclass(frozen=True)
class Clock:
    """The time, and a way to sleep."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


class Clients:
    """boto3's clients for one region, made when needed; their failures become CloudErrors."""

    def __init__(self, region: str, clock: Clock | None = None) -> None:
        self.region = region
        self.clock = clock or Clock()
        self._session = _open_session(region)
        self._made: dict[str, Any] = {}

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """One call, repeated while AWS throttles; CloudError that says what to do."""
        began, is_lost = self.clock.now(), False
        for attempt in count():
            try:
                return self._attempt(service, operation, arguments)
            except CloudError as error:
                is_lost = is_lost or error.may_be_done
                waited_s = self.clock.now() - began
                if error.code not in THROTTLED and not (error.may_be_done and waited_s < _UNREACHABLE_S):
                    error.may_be_done = is_lost
                    raise
            pause_s = min(_LONGEST_PAUSE_S, 2.0 ** min(attempt, 10))
            self.clock.sleep(pause_s * random.uniform(0.5, 1.0))  # jitter
        raise AssertionError("unreachable")

    def wait_until(self, is_done: Callable[[], bool], what: str, limit_s: float) -> None:
        """Poll; CloudError if it takes longer than `limit_s`."""
        deadline = self.clock.now() + limit_s
        while not is_done():
            if self.clock.now() > deadline:
                raise CloudError(
                    f"{what} took longer than {limit_s / 60:.0f} minutes; try the same command again"
                )
            self.clock.sleep(_POLL_S)

    def _attempt(self, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError
        from botocore.parsers import ResponseParserError

        try:
            return self._send(service, operation, arguments)
        except NoCredentialsError:
            raise UserError(
                "there are no AWS credentials here; `aws configure` or AWS_PROFILE sets them"
            ) from None
        except ClientError as error:
            raise _explain(operation, error.response.get("Error", {})) from None
        except ParamValidationError as error:
            raise CloudError(f"{operation}: {error}") from None
        except (BotoCoreError, ResponseParserError) as error:
            raise CloudError(f"AWS cannot be reached for {operation}: {error}", may_be_done=True) from None

    def _send(self, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = getattr(self._client(service), operation)(**arguments)
        return result

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """The entries of a paginated list."""
        token_names = {"efs": ("Marker", "NextMarker"), "iam": ("Marker", "Marker")}
        ask, answer = token_names.get(service, ("NextToken", "NextToken"))
        token: str | None = None
        while True:
            page = self.call(service, operation, **arguments, **({ask: token} if token else {}))
            yield from page.get(key, [])
            token = page.get(answer)
            if not token:
                return

    def _client(self, service: str) -> Any:
        if service not in self._made:
            from botocore.config import Config

            # `call` sends again itself: botocore gives up on throttling, and retries what has no capacity.
            config = Config(retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=60)
            self._made[service] = self._session.client(service, config=config)
        return self._made[service]


def configured_region() -> str | None:
    """The region that the user's own settings name."""
    region: str | None = _open_session(None).region_name
    return region


def _open_session(region: str | None) -> Any:
    try:
        import boto3
    except ImportError:
        raise UserError(f"renting machines needs boto3: {install_hint('aws')}") from None
    return boto3.Session(region_name=region)


def _explain(operation: str, error: dict[str, Any]) -> CloudError:
    """AWS refused a call."""
    code, said = str(error.get("Code", "")), str(error.get("Message", "")).rstrip(".")
    remedy = _REMEDIES.get(code, "")
    message = f"{operation}: {said} ({code})" + (f"; {remedy}" if remedy else "")
    return CloudError(message, code, may_be_done=code in _FAILED_THERE)
