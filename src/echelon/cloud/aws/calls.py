"""Calls to AWS through boto3 as it comes: credentials, profiles and endpoints are the user's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from echelon.errors import CloudError, UserError
from echelon.extras import install_hint

NOT_FOUND = (
    "InvalidGroup.NotFound",
    "InvalidInstanceID.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidPlacementGroup.Unknown",
    "FileSystemNotFound",
    "MountTargetNotFound",
    "NoSuchEntity",
    "NoSuchEntityException",
)
_REMEDIES = {
    "VcpuLimitExceeded": "your account may not have that many; `echelon cloud up` prints the request for more",
    "MaxSpotInstanceCountExceeded": "your account may not have that many spare machines; ask for a higher quota",
    "InsufficientInstanceCapacity": "AWS has none left there at the moment; try another region, type or subnet",
    "ExpiredToken": "your credentials have expired; log in again (`aws sso login`), then give the same command again",
    "RequestExpired": "your credentials or this machine's clock are out of date",
    "ExpiredTokenException": "your credentials have expired; log in again, then give the same command again",
    "AuthFailure": "your credentials are not accepted; see `aws sts get-caller-identity`",
    "UnauthorizedOperation": "your user may not do this; docs/cloud.md has the policy it needs",
    "AccessDenied": "your user may not do this; docs/cloud.md has the policy it needs",
    "AccessDeniedException": "your user may not do this; docs/cloud.md has the policy it needs",
}


class Clients:
    """boto3's clients for one region, made when needed; every failure of theirs becomes a CloudError."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._session = _open_session(region)
        self._made: dict[str, Any] = {}

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """One call; CloudError that says what to do."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
        from botocore.parsers import ResponseParserError

        try:
            result: dict[str, Any] = getattr(self._client(service), operation)(**arguments)
        except NoCredentialsError:
            raise UserError(
                "there are no AWS credentials here; `aws configure` or AWS_PROFILE sets them"
            ) from None
        except ClientError as error:
            raise _explain(operation, error.response.get("Error", {})) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise CloudError(f"AWS cannot be reached for {operation}: {error}") from None
        return result

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """The entries of a list that AWS hands out in pages."""
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

            config = Config(
                retries={"max_attempts": 5, "mode": "standard"}, connect_timeout=10, read_timeout=60
            )
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
    """AWS has refused a call."""
    code, said = str(error.get("Code", "")), str(error.get("Message", "")).rstrip(".")
    remedy = _REMEDIES.get(code, "")
    return CloudError(f"{operation}: {said} ({code})" + (f"; {remedy}" if remedy else ""), code)


@contextlib.contextmanager
def gone_is_fine() -> Iterator[None]:
    """What is being removed may be gone already."""
    try:
        yield
    except CloudError as error:
        if error.code not in NOT_FOUND:
            raise
