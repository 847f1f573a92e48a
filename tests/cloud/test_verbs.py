"""The verbs of `cloud` against moto's server: the question first, the list, and what is lost."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from echelon.cloud.aws.calls import Clients
from echelon.cloud.journal import Journal, known_clusters
from echelon.cloud.lifecycle import cost_so_far
from echelon.commands import cloud
from echelon.commands.cluster_options import ClusterOptions, on_rented
from echelon.commands.rented_hosts import render_own_folder, render_shared_folder
from echelon.errors import CloudError, UserError
from echelon.launch.hosts import Host
from tests.cloud.clusters import age
from tests.cloud.server import QUOTAS, client, everything_left

CLUSTER = 'name = "wmt"\ntype = "g4dn.2xlarge"\ncount = 2\nhours = 4\nssh_from = "203.0.113.7"\n'


@pytest.fixture
def file(aws: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cloud, "Clients", lambda region: aws)
    monkeypatch.setattr(cloud, "make_ready", lambda cluster, console: None)
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    return path


def up(file: Path, answer: bool = True) -> dict[str, Any]:
    return cloud.up(file, lambda question: answer, Console(quiet=True))


def test_nothing_is_made_before_the_question_is_answered(aws: Clients, file: Path) -> None:
    def ask(question: str) -> bool:
        assert everything_left() == []
        return False

    with pytest.raises(UserError, match="nothing was made"):
        cloud.up(file, ask, Console(quiet=True))
    assert everything_left() == []
    assert known_clusters() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("g4dn.2xlarge", "g4dn.2xlage"), "did you mean g4dn.2xlarge"),
        (('type = "g4dn.2xlarge"', "type = g4dn.2xlarge"), "line 2, column 8): type = g4dn.2xlarge"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_before_aws_is_asked(
    file: Path, change: tuple[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> NoReturn:
        raise CloudError("there are no AWS credentials here")

    monkeypatch.setattr("echelon.commands.cloud.Clients", ask)
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(UserError, match=re.escape(message)):
        up(file)


@pytest.mark.parametrize(("date", "warns"), [("2001-02-03", True), ("9999-01-01", False)])
def test_prices_that_are_old_are_told_before_the_question(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, date: str, warns: bool
) -> None:
    own = tmp_path / "prices.toml"
    own.write_text(f"[aws]\ndate = {date}\n")
    monkeypatch.setenv("ECHELON_PRICES", str(own))
    console = Console(record=True, file=io.StringIO(), width=200)

    def ask(question: str) -> bool:
        assert ("  warning: the prices of aws are of 2001-02-03" in console.export_text(clear=False)) == warns
        return False

    with pytest.raises(UserError, match="nothing was made"):
        cloud.up(file, ask, console)


def test_a_quota_that_is_too_low_is_told_before_the_question(aws: Clients, file: Path) -> None:
    QUOTAS["L-DB2E81BA"] = 8
    with pytest.raises(UserError, match="request-service-quota-increase"):
        cloud.up(file, lambda question: pytest.fail("asked"), Console(quiet=True))


def test_up_list_ssh_down(aws: Clients, file: Path) -> None:
    result = up(file)
    assert result["hosts"] == ["wmt-0", "wmt-1"]
    config = Path(result["ssh_config"]).read_text()
    host = Journal("wmt").require().hosts[1]
    assert f"Host wmt-1\n  HostName {host.public_address}\n" in config
    assert "StrictHostKeyChecking yes" in config
    (listed,) = cloud.list_clusters(None)
    assert (listed.name, listed.state, listed.machines, listed.is_written_down) == ("wmt", "running", 2, True)
    assert listed.cost is not None
    assert listed.ends_in_hours == pytest.approx(4, abs=0.1)
    json.dumps(cloud.listed_json([listed]))
    command = cloud.ssh_command("wmt", 1, 6006, [])
    assert command[-3:] == ["-L", "127.0.0.1:6006:127.0.0.1:6006", "wmt-1"]
    with pytest.raises(UserError, match="hosts 0 to 1"):
        cloud.ssh_command("wmt", 2, None, [])
    removed = cloud.down("wmt", None, lambda question: True, Console(quiet=True))
    assert cloud.format_down(removed).startswith("nothing is left of wmt; it has cost about $0.")
    assert everything_left() == []
    assert cloud.format_list(cloud.list_clusters(None)) == "there are no rented machines"


def test_a_forgotten_cluster_is_listed_with_what_removes_it(aws: Clients, file: Path) -> None:
    up(file)
    Journal("wmt").forget()
    words = cloud.format_list(cloud.list_clusters(None))
    assert "not written down here" in words
    assert "`echelon cloud down wmt --region us-east-1`" in words
    cloud.down("wmt", "us-east-1", lambda question: True, Console(quiet=True))
    assert everything_left() == []


def test_machines_that_ended_by_themselves_are_shown_and_not_trained_on(aws: Clients, file: Path) -> None:
    result = up(file)
    ids = [host.id for host in Journal("wmt").require().hosts]
    client("ec2").terminate_instances(InstanceIds=ids)
    (listed,) = cloud.list_clusters(None)
    assert (listed.state, listed.machines) == ("ended, its files are kept", 0)
    assert result["most"] > 0


def test_files_that_somebody_removed_are_not_said_to_be_kept(aws: Clients, file: Path) -> None:
    up(file)
    client("ec2").terminate_instances(InstanceIds=[host.id for host in Journal("wmt").require().hosts])
    (system,) = client("efs").describe_file_systems()["FileSystems"]
    (mount,) = client("efs").describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
    client("efs").delete_mount_target(MountTargetId=mount["MountTargetId"])
    client("efs").delete_file_system(FileSystemId=system["FileSystemId"])
    (listed,) = cloud.list_clusters(None)
    assert listed.state == "ended"


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_waiting_for_the_machines_removes_them(
    aws: Clients, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "make_ready", interrupt)
    with pytest.raises(CloudError, match="interrupted\nnothing is left of wmt"):
        up(file)
    assert everything_left() == []
    assert known_clusters() == []


def test_ctrl_c_while_removing_says_what_still_runs_and_costs(
    aws: Clients, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "make_ready", interrupt)
    with monkeypatch.context() as patch:
        patch.setattr("echelon.cloud.aws.machines.Machines.remove", interrupt)
        with pytest.raises(CloudError) as error:
            up(file)
    machines = [host.id for host in Journal("wmt").require().hosts]
    assert re.search(r"may cost \$\d+\.\d\d an hour; `echelon cloud down wmt` tries again", str(error.value))
    assert [f"machines {id_}: interrupted" in str(error.value) for id_ in machines] == [True, True]
    assert set(machines) <= set(everything_left())
    cloud.down("wmt", None, lambda question: True, Console(quiet=True))
    assert everything_left() == []


def test_ctrl_c_leaves_machines_that_were_there_before_and_says_what_they_cost(
    aws: Clients, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(file)
    before = everything_left()
    monkeypatch.setattr(cloud, "make_ready", interrupt)
    with pytest.raises(CloudError, match=r"interrupted\nwmt stays, and costs up to \$\d"):
        up(file)
    assert everything_left() == before


def test_a_model_that_is_only_on_the_cluster_is_not_removed_unless_forced(aws: Clients, file: Path) -> None:
    up(file)
    run, before = Path("/home/me/runs/one"), everything_left()
    Journal("wmt").note_run(run, is_home=False)
    with pytest.raises(UserError, match=r"checkpoints of /home/me/runs/one have not come home.*--force"):
        cloud.down("wmt", None, lambda question: pytest.fail("asked"), Console(quiet=True))
    assert everything_left() == before
    Journal("wmt").note_run(run, is_home=True)
    assert Journal("wmt").runs == []
    Journal("wmt").note_run(run, is_home=False)
    cloud.down("wmt", None, lambda question: True, Console(quiet=True), is_forced=True)
    assert everything_left() == []


def test_machines_after_the_end_are_asked_for_anew(aws: Clients, file: Path) -> None:
    up(file)
    client("ec2").terminate_instances(InstanceIds=[host.id for host in Journal("wmt").require().hosts])
    old = age(5)
    QUOTAS["L-DB2E81BA"] = 8
    with pytest.raises(UserError, match="request-service-quota-increase"):
        cloud.up(file, lambda question: pytest.fail("asked"), Console(quiet=True))
    QUOTAS.clear()
    console = Console(record=True, file=io.StringIO(), width=200)
    result = cloud.up(file, lambda question: True, console)
    so_far = re.search(r"so far +\$ +(\S+): its time is over", console.export_text())
    assert so_far
    assert float(so_far[1]) == pytest.approx(cost_so_far(old, old.created + 5 * 3600), abs=0.03)
    (listed,) = cloud.list_clusters(None)
    assert (listed.state, listed.machines) == ("running", 2)
    assert listed.ends_in_hours == pytest.approx(4, abs=0.5)
    assert result["ends"] == Journal("wmt").require().deadline
    assert listed.cost is not None
    assert listed.cost > 4 * (old.hourly - old.shared_hourly)
    assert on_rented("wmt", ClusterOptions([])).rented == "wmt"


def test_a_cluster_becomes_hosts_to_train_on(
    aws: Clients, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(file)
    options = on_rented("wmt", ClusterOptions([]))
    assert [host.name for host in options.hosts] == ["wmt-0", "wmt-1"]
    assert (options.install, options.sync, options.rented) == (True, True, "wmt")
    with pytest.raises(UserError, match="both name hosts"):
        on_rented("wmt", ClusterOptions([Host("a")]))
    deadline = Journal("wmt").require().deadline
    monkeypatch.setattr("echelon.commands.rented_hosts.time.time", lambda: deadline + 1)
    with pytest.raises(CloudError, match="have ended by themselves"):
        on_rented("wmt", ClusterOptions([]))


def test_the_folders_of_a_run_are_made_under_their_own_names() -> None:
    own = render_own_folder(Path("/home/me/my runs"))
    assert own.splitlines()[-1] == "make '/home/me/my runs'"
    shared = render_shared_folder(Path("/home/me/runs"), "/shared")
    assert "as_root mount --bind /shared/home/me/runs /home/me/runs" in shared
