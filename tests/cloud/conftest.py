"""An AWS account in a box, and a place for the clusters that are written down."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from echelon.cloud import parts
from echelon.cloud.aws.calls import Clients
from tests.cloud.server import PLACEMENT, QUOTAS, REGION, moto_server


@pytest.fixture(scope="session")
def moto_address() -> Iterator[str]:
    with moto_server() as address:
        yield address


@pytest.fixture(scope="session")
def account(moto_address: str) -> Iterator[Clients]:
    """The way to an account, by the environment, as users' commands find theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", moto_address)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        patch.setattr(parts, "_POLL_S", 0.01)
        yield Clients(REGION)


@pytest.fixture
def aws(account: Clients, moto_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clients:
    """An empty account."""
    reset = urllib.request.Request(f"{moto_address}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()
    PLACEMENT.clear()
    QUOTAS.clear()
    monkeypatch.setenv("ECHELON_STATE", str(tmp_path / "state"))
    return account
