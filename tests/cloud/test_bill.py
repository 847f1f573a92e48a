"""The bill before: every number a user is shown, and what a budget does."""

from __future__ import annotations

import pytest

from echelon.cloud.bill import estimate, format_bill
from echelon.cloud.prices import HOURS_PER_MONTH, price
from echelon.errors import UserError
from tests.cloud.clusters import sample_spec


def test_the_bill_is_machines_disks_addresses_and_files() -> None:
    bill = estimate(sample_spec(count=4, hours=6))
    assert bill.machines_hour == pytest.approx(4 * 0.752)
    assert bill.disks_hour == pytest.approx(4 * 150 * 0.08 / HOURS_PER_MONTH)
    assert bill.addresses_hour == pytest.approx(4 * 0.005)
    assert bill.shared_hour == pytest.approx(50 * 0.30 / HOURS_PER_MONTH)
    assert bill.hourly == pytest.approx(3.1143, abs=1e-4)
    assert (bill.max_hours, bill.is_limited_by_budget) == (6, False)
    assert bill.most == pytest.approx(6 * bill.hourly)


def test_a_budget_ends_the_machines_earlier() -> None:
    bill = estimate(sample_spec(count=4, hours=6, budget=10))
    assert bill.is_limited_by_budget
    assert bill.most == pytest.approx(10)
    assert estimate(sample_spec(count=4, hours=1, budget=10)).max_hours == 1


def test_a_time_too_short_for_any_training_is_refused() -> None:
    with pytest.raises(UserError, match=r"hours = 0\.1: .* at least 0\.25"):
        estimate(sample_spec(hours=0.1))


def test_a_budget_that_buys_no_training_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"budget = 0\.5: 4 x g4dn\.2xlarge cost up to \$3\.11 an hour, so it lasts 10 minutes",
    ):
        estimate(sample_spec(count=4, budget=0.5))


def test_spare_machines_cost_what_the_provider_says_or_a_share() -> None:
    spec = sample_spec(spot=True, count=1)
    assert estimate(spec).machines_hour == pytest.approx(price("aws", "g4dn.2xlarge", spot=True))
    assert estimate(spec, 0.25).machines_hour == 0.25


def test_the_most_that_spot_machines_cost_counts_with_the_price_that_is_ordered() -> None:
    free = estimate(sample_spec(spot=True, count=2), 0.25)
    assert free.max_price == pytest.approx(price("aws", "g4dn.2xlarge"))
    bound = estimate(sample_spec(spot=True, count=2, budget=3, hours=100), 0.25)
    assert bound.max_price == pytest.approx(0.3125)
    others = bound.hourly - bound.machines_hour
    assert bound.most == pytest.approx(3)
    assert bound.max_hours == pytest.approx(3 / (2 * 0.3125 + others))
    assert "at most $0.69 an hour if spot prices rise" in format_bill(sample_spec(spot=True), bound)
    assert estimate(sample_spec()).max_price is None


def test_processor_credits_are_part_of_the_bill_and_of_the_budget() -> None:
    credits_hour = 2 * 0.07  # a t3.large has two processors, and its price covers 30% of them
    bill = estimate(sample_spec(type="t3.large", count=2, hours=100, budget=3))
    assert bill.machines_hour == pytest.approx(2 * price("aws", "t3.large") + credits_hour)
    assert bill.most == pytest.approx(3)
    assert "($0.14 of it for processor credits)" in format_bill(sample_spec(type="t3.large"), bill)
    spare = estimate(sample_spec(type="t3.large", count=2, spot=True, hours=2), 0.03)
    assert spare.machines_hour == pytest.approx(2 * 0.03 + credits_hour)
    assert spare.max_price == pytest.approx(price("aws", "t3.large")), (
        "credits are no part of the price that is ordered"
    )
    assert spare.most == pytest.approx(2 * (spare.hourly + 2 * (price("aws", "t3.large") - 0.03)))


def test_after_their_end_only_the_files_cost() -> None:
    bill = estimate(sample_spec(hours=2))
    assert bill.after(1) == pytest.approx(bill.hourly)
    assert bill.after(5) == pytest.approx(2 * bill.hourly + 3 * bill.shared_hour)


def test_the_bill_in_words() -> None:
    spec = sample_spec(count=4, hours=6, budget=15)
    assert format_bill(spec, estimate(spec)) == (
        "wmt: 4 x g4dn.2xlarge (on demand) in us-east-1\n"
        "  machines          $    3.01 an hour\n"
        "  their disks       $    0.07 an hour  (4 x 150 GB)\n"
        "  public addresses  $    0.02 an hour\n"
        "  shared files      $    0.02 an hour  (50 GB)\n"
        "  together          $    3.11 an hour\n"
        "  at most           $   15.00: the machines terminate by themselves after 4.8 hours (the budget)\n"
        "  prices of 2025-11-01 (aws.amazon.com/ec2/pricing/on-demand and aws.amazon.com/efs/pricing, Linux, us-east-1)"
        "; traffic to the internet is extra"
    )


def test_whose_code_the_machines_run_is_told_before_the_question() -> None:
    spec = sample_spec(image="ami-0123456789", container="registry.example/team/echelon:1")
    assert format_bill(spec, estimate(spec)).endswith(
        "\n  runs image ami-0123456789 and container registry.example/team/echelon:1: whoever made that controls the "
        "machines and what they may do with s3://mine/runs"
    )
    alone = sample_spec(image="ami-0123456789", bucket=None)
    assert format_bill(alone, estimate(alone)).endswith(
        "\n  runs image ami-0123456789: whoever made that controls the machines"
    )
