"""GPUs are found by the names that their driver gives them."""

from __future__ import annotations

import pytest

from echelon.explain.hardware import catalogue, find_gpu_like

AS_THE_DRIVER_SAYS = {
    "Tesla K80": "K80",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla P100-SXM2-16GB": "P100",
    "Tesla V100-SXM2-16GB": "V100",
    "Tesla V100-PCIE-16GB": "V100",
    "Tesla T4": "T4",
    "NVIDIA A10G": "A10G",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100-PCIE-40GB": "A100",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100 80GB PCIe": "A100-80GB",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
}
"""What `nvidia-smi --query-gpu=name` prints, and the list's own name."""


@pytest.mark.parametrize("description", AS_THE_DRIVER_SAYS)
def test_a_gpu_is_found_by_its_drivers_name(description: str) -> None:
    device = find_gpu_like(description)
    assert device is not None
    assert device.name == AS_THE_DRIVER_SAYS[description]


def test_every_gpu_of_the_list_has_its_drivers_name_here() -> None:
    assert set(AS_THE_DRIVER_SAYS.values()) == set(catalogue().gpus)


@pytest.mark.parametrize(
    "description", ["", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "NVIDIA GeForce RTX 2080"]
)
def test_what_the_list_does_not_have_is_not_found(description: str) -> None:
    assert find_gpu_like(description) is None
