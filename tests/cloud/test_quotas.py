"""Quotas are asked for before anything is made."""

from __future__ import annotations

import pytest

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.quotas import check_quota, family_of
from echelon.errors import UserError
from tests.cloud.clusters import sample_spec, up
from tests.cloud.server import QUOTAS


@pytest.mark.parametrize(
    ("machine", "family"),
    [
        ("g4dn.xlarge", "G"),
        ("gr6.4xlarge", "G"),
        ("p4d.24xlarge", "P"),
        ("t3.large", "standard"),
        ("x2.large", "X"),
    ],
)
def test_which_quota_counts_a_machine(machine: str, family: str) -> None:
    assert family_of(machine) == family


def test_what_is_enough_is_enough(aws: Clients) -> None:
    QUOTAS["L-DB2E81BA"] = 32
    quota = check_quota(aws, sample_spec(count=4), 4)
    assert quota is not None
    assert (quota.limit, quota.used) == (32, 0)


def test_a_quota_that_is_too_low_comes_with_the_request_for_more(aws: Clients) -> None:
    QUOTAS["L-DB2E81BA"] = 8
    with pytest.raises(UserError) as error:
        check_quota(aws, sample_spec(count=4), 4)
    assert "4 x g4dn.2xlarge need 32 virtual processors" in str(error.value)
    assert "--quota-code L-DB2E81BA --desired-value 32" in str(error.value)
    assert "Please raise the quota" in str(error.value)


def test_spare_machines_have_a_quota_of_their_own(aws: Clients) -> None:
    QUOTAS["L-3819A6DF"] = 0
    check_quota(aws, sample_spec(), 2)
    with pytest.raises(UserError, match="Spot"):
        check_quota(aws, sample_spec(spot=True), 2)


def test_machines_that_run_already_count(aws: Clients) -> None:
    up(aws)
    quota = check_quota(aws, sample_spec(count=1), 1)
    assert quota is not None
    assert quota.used > 0
