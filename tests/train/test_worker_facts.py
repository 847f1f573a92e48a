"""What a worker measures of itself: which card is the cluster's, and who counts its bytes."""

from __future__ import annotations

import pytest
import torch

from echelon.train.worker_facts import cluster_card, describe_differences, open_meter


@pytest.mark.parametrize(
    ("variables", "card"),
    [
        ({}, "lo"),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, "eth1"),
        ({"NCCL_SOCKET_IFNAME": "=ens5"}, "ens5"),
        ({"GLOO_SOCKET_IFNAME": "eth0,eth1"}, "eth0"),
    ],
)
def test_the_clusters_card_is_the_one_that_the_launcher_names(
    variables: dict[str, str], card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cluster_card() == card


@pytest.mark.parametrize(("local_rank", "counts"), [("0", True), ("1", False)])
def test_the_first_worker_of_a_host_counts_the_bytes_at_its_card(
    local_rank: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert ("received" in open_meter(torch.device("cpu")).take()) is counts


def test_hosts_that_compute_in_another_way_are_named_with_the_reason() -> None:
    own, plain = (
        "own kernels, compiled for this CPU",
        "plain PyTorch, which is slower: no C++ compiler was found",
    )

    assert describe_differences([["alpha", own], ["alpha", own], ["beta", own]]) is None
    assert describe_differences([["alpha", own], ["beta", plain], ["beta", plain], ["gamma", own]]) == (
        "workers do not compute alike: who computes what shows in the last bits of the weights. "
        f"alpha, gamma: {own}; beta: {plain}"
    )
