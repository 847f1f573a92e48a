from __future__ import annotations

from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.lab.layout import LabPlan, LabSpec, host_names
from tests.lab.sample_plan import sample_plan


def test_names_and_addresses_of_a_host() -> None:
    host = sample_plan().host("host2")
    assert host.address == "10.77.3.2"
    assert host.mac == "02:00:0a:4d:03:02"
    assert host.namespace == "echelon-lab-host2"
    assert host.disk == Path("/lab/disks/host2")


def test_an_unknown_host_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="the lab 'lab' has no host 'host3'; it has host1, host2"):
        sample_plan().host("host3")


def test_two_labs_share_no_name_and_no_address() -> None:
    def names(plan: LabPlan) -> set[str]:
        hosts = plan.hosts
        return {plan.switch, plan.switch_address, *(h.namespace for h in hosts), *(h.address for h in hosts)}

    one, other = sample_plan(name="lab", subnet=0), sample_plan(name="lab2", subnet=1)
    assert names(one) & names(other) == set()


def test_every_file_of_a_lab_but_the_shared_folder_is_its_own() -> None:
    plan = sample_plan()
    own = plan.own_files
    host = plan.hosts[0]
    for path in (
        host.disk,
        host.machine,
        host.log,
        plan.ssh_config,
        plan.known_hosts,
        plan.user_key,
        plan.stage,
    ):
        assert any(path.is_relative_to(folder) for folder in own)
    assert not any(plan.shared.is_relative_to(path) for path in own)


def test_hosts_are_numbered_from_one() -> None:
    assert host_names(3) == ["host1", "host2", "host3"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LabSpec(name="Lab"), "--name 'Lab'"),
        (LabSpec(name="a/../b"), "--name"),
        (LabSpec(name="x" * 21), "--name"),
        (LabSpec(hosts=0), "--hosts 0"),
        (LabSpec(hosts=101), "--hosts 101"),
        (LabSpec(cpus=0.0), "--cpus 0"),
        (LabSpec(cpus=-1.0), "--cpus -1"),
        (LabSpec(cpus=float("nan")), "--cpus nan"),
        (LabSpec(rate="quick"), "rate 'quick'"),
        (LabSpec(folder=Path("/a folder")), "--folder"),
        (LabSpec(folder=Path('/a"b')), "--folder"),
    ],
)
def test_what_a_lab_cannot_be_is_told(spec: LabSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec.check()


def test_the_folder_is_named_after_the_lab_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert LabSpec(name="box").where == tmp_path.resolve() / "box"
