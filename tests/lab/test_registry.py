"""The book of labs, in a folder of the test's own: nothing is made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.lab import registry
from echelon.lab.cgroup import CpuController
from echelon.lab.layout import LabPlan, LabSpec


@pytest.fixture
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LABS", tmp_path / "labs")
    monkeypatch.setattr(registry, "NAMESPACES", tmp_path / "netns")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "netns").mkdir()


def enter(tmp_path: Path, name: str = "one", folder: str = "one") -> LabPlan:
    spec = LabSpec(name, tmp_path / folder, hosts=2, rate="1gbit", cpus=0.5)
    return registry.register(spec, 0.5, CpuController(tmp_path / "cpu", 1))


pytestmark = pytest.mark.usefixtures("own_registry")


def test_a_lab_is_found_again_as_it_was_written(tmp_path: Path) -> None:
    assert registry.find_plan("one") is None
    plan = enter(tmp_path)
    assert registry.find_plan("one") == plan
    assert list(plan.rates) == ["host1", "host2"]
    registry.unregister(plan)
    assert registry.find_plan("one") is None


def test_each_lab_gets_addresses_of_its_own(tmp_path: Path) -> None:
    first, second = enter(tmp_path, "one", "one"), enter(tmp_path, "two", "two")
    assert (first.subnet, second.subnet) == (0, 1)
    registry.unregister(first)
    assert enter(tmp_path, "three", "three").subnet == 0


def test_only_folders_that_were_not_there_are_removed_later(tmp_path: Path) -> None:
    (tmp_path / "here" / "shared").mkdir(parents=True)
    assert enter(tmp_path, "one", "here").made_folders == []
    deep = tmp_path / "a" / "b"
    assert enter(tmp_path, "two", "a/b").made_folders == [tmp_path / "a", deep, deep / "shared"]


def test_a_lab_that_is_up_and_folders_in_use_are_told(tmp_path: Path) -> None:
    enter(tmp_path)
    with pytest.raises(
        UserError, match=r"a lab 'one' is up already.*another --name, or .*`echelon lab down --name one`"
    ):
        enter(tmp_path, folder="elsewhere")
    with pytest.raises(UserError, match="the lab 'one' is in"):
        enter(tmp_path, "two", "one/inside")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds 'thesis.tex'"):
        enter(tmp_path, "two", "work")
    with pytest.raises(UserError, match="is a file"):
        enter(tmp_path, "two", "work/thesis.tex")


@pytest.mark.parametrize(("place", "kind"), [("netns", "network namespace"), ("cpu", "control group")])
def test_names_that_somebody_else_uses_are_left_alone(tmp_path: Path, place: str, kind: str) -> None:
    (tmp_path / place / "echelon-one-host2").mkdir()
    with pytest.raises(UserError, match=f"there is a {kind} echelon-one-host2 that no lab here has made"):
        enter(tmp_path)
    assert registry.find_plan("one") is None


def test_a_damaged_plan_is_told(tmp_path: Path) -> None:
    enter(tmp_path)
    (tmp_path / "labs" / "one" / "plan.json").write_text("[]")
    with pytest.raises(UserError, match=r"plan.json: is damaged"):
        registry.find_plan("one")


def test_a_folder_of_a_start_that_was_killed_at_once_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "labs" / "one").mkdir(parents=True)
    assert registry.read_plans() == []
    enter(tmp_path)


def test_a_change_that_waited_for_a_removal_finds_no_lab(tmp_path: Path) -> None:
    plan = enter(tmp_path)
    found: list[LabPlan | None] = []

    def look() -> None:
        with registry.registered("one") as (seen, _):
            found.append(seen)

    with registry.registered("one"):
        waiting = threading.Thread(target=look)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        registry.unregister(plan)
    waiting.join()
    assert found == [None]


def test_without_a_name_only_a_lab_in_this_folder_is_meant(tmp_path: Path) -> None:
    here = tmp_path / "mine"
    assert registry.choose_lab(None, here) == "lab"
    enter(tmp_path, "lab", "theirs/lab")
    with pytest.raises(UserError, match=r"no lab is up in .*--name chooses .*: lab in "):
        registry.choose_lab(None, here)
    enter(tmp_path, "two", "mine/lab")
    assert registry.choose_lab(None, here) == "two"
    assert registry.choose_lab(None, here / "lab" / "shared") == "two"
    assert registry.choose_lab("lab", here) == "lab"
    enter(tmp_path, "three", "mine/three")
    with pytest.raises(UserError, match="there are 2 labs here"):
        registry.choose_lab(None, here)


def test_somebody_elses_lab_is_not_offered_for_removal(tmp_path: Path) -> None:
    enter(tmp_path, "lab", "theirs/lab")
    with pytest.raises(UserError, match=r"choose another --name$"):
        enter(tmp_path, "lab", "mine/lab")
