"""Plans: what must be so whatever the constants are, and what a user sees."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.commands.plan import precision_warnings
from echelon.errors import UserError
from echelon.explain.clusters import parse_cluster
from echelon.explain.cost import EXCHANGES, memory_bytes, predict, ready_buffers
from echelon.explain.plan import ClusterPlan, format_plan, format_sweep, parse_sweep, plan_cluster, sweep
from echelon.explain.profile import Profile, profile_of
from echelon.explain.text_description import describe_text
from echelon.explain.uncertainty import Scenario, find_range
from echelon.explain.units import show_hours, show_step
from echelon.explain.workload import Workload, recipe_workload
from tests.sample_recipe import sample_recipe

PROFILE = Profile(0.1, 0.01, 0.002, 0.03, 0.412)


@pytest.fixture(scope="module")
def workload() -> Workload:
    recipe = sample_recipe("model.preset=base", "data.vocabulary=32768", "train.slots=16")
    return recipe_workload(recipe, None, describe_text(recipe, None))


def test_layers_add_up_to_the_models_parameters_and_flops(workload: Workload) -> None:
    recipe = sample_recipe("model.preset=base", "data.vocabulary=32768", "train.slots=16")
    description = describe_text(recipe, None)
    assert workload.parameters == description.parameters
    assert workload.training_flops == description.flops_per_step
    assert workload.checkpoint_bytes() == description.checkpoint_bytes


def test_a_shared_out_optimiser_takes_less_memory_and_other_traffic(workload: Workload) -> None:
    shared = replace(workload, shares_optimiser=True)
    whole, quarter = memory_bytes(workload, 4), memory_bytes(shared, 4)
    assert whole - quarter == pytest.approx(0.75 * 2 * workload.gradient_bytes), "of Adam's two averages"
    assert memory_bytes(shared, 1) == memory_bytes(workload, 1) == whole
    hosts = parse_cluster("4x(1xT4, 100gbit)")
    alike, apart = predict(workload, hosts), predict(shared, hosts)
    assert apart.bytes_per_step == pytest.approx(alike.bytes_per_step)
    weights_s = apart.bytes_per_step / 2 / (100e9 / 8)
    assert apart.cost.communication > weights_s, "nothing hides the weights that come back after the update"
    assert apart.cost.optimiser == pytest.approx(alike.cost.optimiser / 4)


def test_two_passes_are_twice_the_work_on_the_same_tokens() -> None:
    workloads = []
    for weight in (0, 5):
        recipe = sample_recipe(f"train.r_drop={weight}")
        description = describe_text(recipe, None)
        workloads.append(recipe_workload(recipe, None, description))
        assert workloads[-1].training_flops == description.flops_per_step
    once, twice = workloads
    assert twice.training_flops == 2 * once.training_flops
    assert twice.activation_bytes == 2 * once.activation_bytes
    assert twice.objects == once.objects


def test_shared_embeddings_are_ready_last_and_buckets_hold_every_byte(workload: Workload) -> None:
    assert workload.layers[0].name == "output"
    assert workload.layers[-1].name == "embeddings"
    buffers = ready_buffers(workload, slot_s=3.0)
    assert sum(buffer.size_bytes for buffer in buffers) == pytest.approx(workload.gradient_bytes)
    assert sum(buffer.backward_s for buffer in buffers) == pytest.approx(2.0)
    assert all(buffer.size_bytes <= 2**23 for buffer in buffers)


@given(st.sampled_from(EXCHANGES), st.integers(1, 16), st.sampled_from(["100mbit", "1gbit", "10gbit"]))
def test_predictions_lie_in_their_range_and_nothing_scales_better_than_perfectly(
    exchange: str, hosts: int, rate: str
) -> None:
    recipe = sample_recipe("model.preset=base", "data.vocabulary=32768", "train.slots=16")
    workload = recipe_workload(recipe, None, describe_text(recipe, None))
    found = predict(workload, parse_cluster(f"{hosts}x(2xT4, {rate})"), exchange)  # type: ignore[arg-type]
    assert found.seconds.low <= found.seconds.expected <= found.seconds.high
    assert 0 < found.efficiency <= 1.001


def test_a_slow_line_bounds_the_step_and_a_fast_one_does_not(workload: Workload) -> None:
    slow, fast = (predict(workload, parse_cluster(f"2x(1xT4, {rate})")) for rate in ("100mbit", "100gbit"))
    assert slow.cost.bound == "network"
    assert fast.cost.bound == "compute"
    assert slow.seconds.expected > fast.seconds.expected


def test_input_that_takes_longer_than_all_else_bounds_the_step(workload: Workload) -> None:
    hungry = replace(workload, input_core_s=1e4)
    found = predict(hungry, parse_cluster("1xg4dn.2xlarge"))
    assert found.cost.bound == "input"
    assert found.seconds.expected == pytest.approx(1e4 / 8)


def test_exchanges_move_the_bytes_that_their_kind_needs(workload: Workload) -> None:
    cluster = parse_cluster("2x(1xT4, 1gbit)")
    moved = {name: predict(workload, cluster, name).bytes_per_step for name in EXCHANGES}
    assert moved["all_reduce"] == pytest.approx(workload.gradient_bytes)
    assert moved["compressed"] == pytest.approx(workload.gradient_bytes / 2)
    assert moved["local"] == pytest.approx(workload.gradient_bytes / 2 / 16)
    table = 32768 * 512 * (1 + 4 / 512)
    assert table < moved["low_rank"] < 1.3 * table, "8 bits a number; all matrices together are less"


def test_a_profile_decides_how_long_computing_takes(workload: Workload) -> None:
    one = predict(workload, parse_cluster("1x(1xcpu, 1gbit)"), profile=PROFILE)
    assert one.seconds.expected == pytest.approx(16 * 0.1 + 0.012)
    three = predict(workload, parse_cluster("3x(1xcpu, 100gbit)"), profile=PROFILE)
    assert three.cost.compute == pytest.approx(6 * 0.1)  # 16 slots on 3 workers: one has 6
    assert (one.seconds.high - one.seconds.low) / one.seconds.expected < 0.3


def test_a_profile_is_measured_with_one_worker() -> None:
    phases = {
        "data": 0.1,
        "forward": 0.4,
        "backward": 0.8,
        "optimiser": 0.05,
        "other": 0.01,
        "checkpoint": 0.0,
    }
    measured = {"workers": 1, "breakdown": phases, "seconds_per_step": 1.36}
    assert profile_of(measured, slots=4).slot_seconds == pytest.approx(1.3 / 4)
    with pytest.raises(UserError, match="one worker"):
        profile_of(measured | {"workers": 2}, slots=4)
    with pytest.raises(UserError, match="no profile"):
        profile_of({"workers": 1}, slots=4)


def test_the_table_names_what_bounds_a_step_and_what_would_be_faster(workload: Workload) -> None:
    plans = [
        plan_cluster(workload, parse_cluster(spec)) for spec in ("4xg4dn.2xlarge", "2x(2xV100, 100mbit)")
    ]
    words = format_plan(plans, workload, is_profiled=False)
    assert "network" in words
    assert "times as fast as all_reduce" in words
    assert "data sheets" in words
    assert plans[0].cost == pytest.approx(plans[0].hours * 4 * 0.752)  # type: ignore[operator]


def test_a_plan_says_where_training_will_find_the_batch() -> None:
    recipe = sample_recipe("train.batch=auto")
    workload = recipe_workload(recipe, None, describe_text(recipe, None))
    words = format_plan([plan_cluster(workload, parse_cluster("1x(1xT4)"))], workload, is_profiled=False)
    assert (
        'sample: batch = "auto" is found when training begins; counted here with at most 1,024 tokens a step.'
        in words.splitlines()
    )


def recipe_plan(spec: str, *overrides: str) -> ClusterPlan:
    recipe = sample_recipe("model.preset=base", "data.vocabulary=32768", "train.slots=16", *overrides)
    return plan_cluster(recipe_workload(recipe, None, describe_text(recipe, None)), parse_cluster(spec))


def test_the_exchange_that_the_recipe_names_is_planned(workload: Workload) -> None:
    plan = recipe_plan("2x(1xT4, 1gbit)", "train.exchange=low_rank")
    assert plan.exchange == "low_rank"
    assert plan.bytes_per_step == pytest.approx(workload.low_rank_bytes)
    assert plan.seconds_per_step == plan.exchanges["low_rank"]["seconds_per_step"]


def test_a_sum_host_by_host_is_planned_as_one(workload: Workload) -> None:
    plain, by_host = (
        recipe_plan("2x(2xT4, 1gbit)", f"exchange.hierarchical={it}") for it in ("false", "true")
    )
    assert plain.bytes_per_step == pytest.approx(1.5 * workload.gradient_bytes)
    assert by_host.bytes_per_step == pytest.approx(workload.gradient_bytes)
    assert [name for name, each in by_host.exchanges.items() if each["algorithm"] == "hierarchical"] == [
        "all_reduce",
        "compressed",
        "low_rank",
        "local",
    ]


@pytest.mark.parametrize(
    ("rate", "allowed", "exchange", "hosts"),
    [
        ("100gbit", ("exact", "compressed", "low_rank", "local"), "all_reduce", 2),
        ("100mbit", ("exact", "local"), "local", 2),
        ("100mbit", ("exact",), "all_reduce", 1),
    ],
)
def test_auto_is_what_training_would_make_of_it(
    rate: str, allowed: tuple[str, ...], exchange: str, hosts: int
) -> None:
    may = f"train.exchange_may={json.dumps(allowed)}"
    plan = recipe_plan(f"2x(1xT4, {rate})", "train.exchange=auto", may, "train.batch_tokens=16384")
    assert (plan.exchange, plan.training_hosts) == (exchange, hosts)
    if hosts == 1:
        alone = recipe_plan(f"1x(1xT4, {rate})", "train.batch_tokens=16384")
        assert plan.seconds_per_step == alone.seconds_per_step
        assert plan.efficiency == pytest.approx(alone.efficiency / 2), "two are paid for"


def test_hosts_that_the_recipe_has_stand_by_train_nothing(workload: Workload) -> None:
    plan = recipe_plan("4x(1xT4, 1gbit)", "exchange.hosts=2")
    assert (plan.training_hosts, plan.workers) == (2, 4)
    assert plan.seconds_per_step == recipe_plan("2x(1xT4, 1gbit)").seconds_per_step
    assert "2 of 4 hosts train" in format_plan([plan], workload, is_profiled=False)


def test_servers_are_exact_only_where_they_wait_for_all() -> None:
    for override, expected in (
        ("exchange.servers=1", True),
        ("exchange.synchronous=false", False),
        ("exchange.backup_workers=1", False),
    ):
        plan = recipe_plan("3x(1xT4, 1gbit)", override)
        assert plan.exchanges["parameter_server"]["is_exact"] is expected


def test_a_recipes_workers_load_their_own_slots_before_they_compute(workload: Workload) -> None:
    assert workload.loading_core_s > 0
    slow = replace(workload, loading_core_s=1e4)
    one, two = (predict(slow, parse_cluster(f"{hosts}x(4xT4, 100gbit)")) for hosts in (1, 2))
    assert one.cost.bound == "input"
    assert one.cost.loading == pytest.approx(1e4 / 4)
    assert two.cost.loading == pytest.approx(1e4 / 8)
    profiled = predict(slow, parse_cluster("1x(1xcpu, 1gbit)"), profile=PROFILE)
    assert profiled.cost.loading == 0, "a profile has it under computing"


def test_workers_without_a_slot_are_mentioned(workload: Workload) -> None:
    plan = plan_cluster(workload, parse_cluster("32x(1xT4, 10gbit)"))
    assert plan.idle_workers == 16
    assert "16 of 32 workers have nothing to do" in format_plan([plan], workload, False)


def test_a_sweep_doubles_and_draws(workload: Workload) -> None:
    assert parse_sweep("hosts=1..1024") == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert parse_sweep("hosts=1..3") == [1, 2, 3]
    assert parse_sweep("hosts=2,3,5") == [2, 3, 5]
    points = sweep(workload, parse_cluster("1xg4dn.2xlarge"), [1, 2, 4], None)
    speedups = [point.speedup["local"] for point in points]
    assert speedups == sorted(speedups)
    assert "█" in format_sweep(points, "g4dn.2xlarge")
    for wrong in ("hosts=0..4", "workers=1..3", "hosts=", "hosts=3..1"):
        with pytest.raises(UserError):
            parse_sweep(wrong)


def test_the_verb_prints_the_promised_keys(
    toy_recipe: Path, echelon: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    result = echelon("plan", toy_recipe, "--on", "4xg4dn.2xlarge", "--on", "2x(2xV100, 1gbit)", "--json")
    document = json.loads(result.stdout)
    promised = {
        "name",
        "seconds_per_step",
        "bytes_per_step",
        "bound",
        "efficiency",
        "hours",
        "cost",
        "exchange",
    }
    assert [promised <= set(cluster) for cluster in document["clusters"]] == [True, True]
    wrong = echelon("plan", toy_recipe, "--on", "4xg4dn.2xlage", status=2)
    assert "did you mean" in wrong.stderr


@pytest.mark.parametrize(
    ("spec", "width"), [("4xg4dn.2xlarge", 1.0), ("2x(2xV100, 1gbit)", 0.5), ("8x(1xT4, 10gbit)", 1.0)]
)
def test_ranges_are_narrow_enough_to_decide_by(spec: str, width: float) -> None:
    """0.585 to 3.31 s helps nobody: that is 2.1 times what is expected."""
    recipe = sample_recipe(
        "model.preset=base", "data.vocabulary=32768", "train.slots=16", "train.precision=float32"
    )
    if "V100" in spec:
        recipe = sample_recipe(
            "model.preset=base", "data.vocabulary=32768", "train.slots=16", "train.precision=fp16"
        )
    found = plan_cluster(recipe_workload(recipe, None, describe_text(recipe, None)), parse_cluster(spec))
    low, high = found.seconds_range
    assert high - low < width * found.seconds_per_step
    assert high < 2 * low


def test_a_wide_range_says_what_would_narrow_it_and_to_what(workload: Workload) -> None:
    unchecked = plan_cluster(workload, parse_cluster("2x(1xA100, 10gbit)"))
    words = format_plan([unchecked], workload, is_profiled=False)
    least, most = (show_step(seconds) for seconds in unchecked.narrowed_range)
    assert unchecked.range_due_to == "compute"
    assert "--use-profile FILE, measured with A100 from `echelon benchmark`, would narrow" in words
    assert f"to {least} - {most}." in words
    no_line = plan_cluster(workload, parse_cluster("4x(2xV100)"))
    assert no_line.range_due_to == "line"
    assert "the link rate is not known" in format_plan([no_line], workload, is_profiled=False)
    measured = plan_cluster(workload, parse_cluster("1x(1xcpu, 1gbit)"), PROFILE)
    assert "would narrow" not in format_plan([measured], workload, is_profiled=True)


@pytest.mark.parametrize(
    ("spec", "precision", "warned"),
    [("4xg4dn.2xlarge", "bf16", "T4"), ("4xg4dn.2xlarge", "fp16", ""), ("2x(1xA100, 10gbit)", "bf16", "")],
)
def test_figures_for_a_gpu_without_bf16_are_said_to_be_those_of_fp16(
    spec: str, precision: str, warned: str
) -> None:
    cluster = parse_cluster(spec)
    found = precision_warnings([cluster, cluster], precision)
    assert [line.split()[1] for line in found] == ([warned] if warned else [])


def test_time_and_cost_of_the_whole_run_have_ranges(workload: Workload) -> None:
    """A decision to rent is about hours and dollars, which the table shows as one number each."""
    rented = plan_cluster(replace(workload, steps=100_000), parse_cluster("4xg4dn.2xlarge"))
    shown = format_plan([rented], workload, is_profiled=False)
    assert rented.hours_range is not None
    assert rented.cost_range is not None
    hours, dollars = map(show_hours, rented.hours_range), (f"${cost:,.2f}" for cost in rented.cost_range)
    assert (
        f"the run takes {' - '.join(hours)} and costs {' - '.join(dollars)}, nine times out of ten." in shown
    )


def test_what_is_bad_all_at_once_is_less_likely_than_each_alone() -> None:
    def seconds(luck: Scenario) -> float:
        return luck.compute + 1 / luck.line

    found = find_range(seconds, Scenario(0.7, 2.0), Scenario(), Scenario(1.3, 1 / 1.4))
    assert found.seconds.expected == 2.0
    assert found.seconds.high == pytest.approx(2.0 + (0.3**2 + 0.4**2) ** 0.5)
    assert found.cause == "line"
