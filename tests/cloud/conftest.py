"""An AWS account within this process, and a place for the clusters that are written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from echelon.cloud.aws.calls import Clients
from tests.cloud.clusters import virtual_clock
from tests.cloud.server import PLACEMENT, QUOTAS, REGION, teach_moto


@pytest.fixture(scope="session")
def account() -> Iterator[Clients]:
    """The way to an account, by the environment, as users' commands find theirs."""
    teach_moto()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield Clients(REGION, virtual_clock())


@pytest.fixture
def aws(account: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    """An empty account."""
    PLACEMENT.clear()
    QUOTAS.clear()
    monkeypatch.setenv("ECHELON_STATE", str(tmp_path / "state"))
    with mock_aws():
        yield account
