"""Own code is imported if the user names it, never because a run's folder does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from echelon.declarations.own import OwnDeclaration
from echelon.errors import UserError
from echelon.launch.probe import Probe
from echelon.recipe.loading import load_recipe
from echelon.recipe.own_code import ALLOWED_VARIABLE, allow, digest_sources, import_own, read_sources
from echelon.runfolder import RunFolder, read_json
from tests.own.conftest import EXAMPLES, Verb

MARKING = """
from pathlib import Path
Path({mark!r}).touch()
from sentences import Languages
"""


@pytest.fixture
def run(run_verb: Verb, tmp_path: Path) -> Path:
    """A trained run of the first example."""
    path = tmp_path / "runs" / "sentences"
    run_verb("train", EXAMPLES / "sentences.toml", "--run", path, "--set", "train.steps=20")
    return path


def test_a_run_is_explained_where_python_does_not_find_its_code(run_verb: Verb, run: Path) -> None:
    (listed,) = run_verb("runs", run.parent, finds_code=False)
    scored = listed["own_scores"]["accuracy"]
    assert scored["of"] == "test"
    assert run_verb("status", run, finds_code=False)["run"]["state"] == "finished"
    report = run_verb("report", run, finds_code=False)
    assert report["test"]["accuracy"] == scored["value"]
    assert report["validation"]["metric"] == "accuracy"
    compared = run_verb("compare", run, run, finds_code=False)
    assert compared is not None


def test_a_run_folder_imports_nothing_until_its_code_is_allowed(
    run_verb: Verb, run: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "imported"
    (tmp_path / "marking.py").write_text(MARKING.format(mark=str(mark)))
    recipe = (run / "recipe.toml").read_text().replace('"sentences:Languages"', '"marking:Languages"')
    (run / "recipe.toml").write_text(recipe)
    for words in (
        ["report", run],
        ["status", run],
        ["runs", run.parent],
        ["describe", run / "recipe.toml"],
        ["evaluate", run],
        ["train", run, "--steps", "30"],
        ["train", run / "recipe.toml", "--steps", "30"],
    ):
        refused = words[0] in ("describe", "evaluate", "train")
        answer = run_verb(*words, status=2 if refused else 0)
        assert not mark.exists(), words
        assert not refused or "--own-code marking:Languages" in answer["error"]
    scored = run_verb("--own-code", "marking:Languages", "evaluate", run)
    assert mark.exists()
    assert scored["accuracy"] > 60


def test_a_run_resumes_by_its_recipe_or_with_its_code_allowed(run_verb: Verb, run: Path) -> None:
    own = ["--own-code", "sentences:Languages"]
    assert run_verb(*own, "train", run, "--steps", "24")["step"] == 24
    assert run_verb("train", EXAMPLES / "sentences.toml", "--run", run, "--steps", "26")["step"] == 26


def test_provenance_has_the_source(run: Path) -> None:
    told = read_json(RunFolder(run).provenance)[-1]["own_code"]
    source = {"sentences.py": (EXAMPLES / "sentences.py").read_bytes()}
    assert told == {
        "paths": ["sentences:Languages"],
        "files": ["sentences.py"],
        "sha256": digest_sources(source),
    }


def test_a_run_is_not_resumed_with_code_that_has_changed(run_verb: Verb, run: Path, tmp_path: Path) -> None:
    changed = (EXAMPLES / "sentences.py").read_text() + "# changed\n"
    (tmp_path / "sentences.py").write_text(changed)  # comes before the example in PYTHONPATH
    answer = run_verb("train", EXAMPLES / "sentences.toml", "--run", run, "--steps", "24", status=2)
    assert "was begun with other data" in answer["error"]


def test_hosts_get_the_code_with_the_data(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, "sentences:Languages")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    recipe: Any = load_recipe(run / "recipe.toml")
    data = Path(read_json(RunFolder(run).data)["folder"])
    environment = OwnDeclaration(recipe.task).host_environment(recipe, data)
    assert environment == {
        ALLOWED_VARIABLE: "sentences:Languages",
        "PYTHONPATH": str(data / "code"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert (data / "code" / "sentences.py").read_bytes() == (EXAMPLES / "sentences.py").read_bytes()
    assert Probe().data(str(data), data.name) is None, "a host takes them"
    (tmp_path / "elsewhere").mkdir()
    for name in (
        "more.py",
        "sitecustomize.pyc",
        "numpy.so",
        "__pycache__/sentences.cpython-311.pyc",
        "torch",
    ):
        added = data / "code" / name
        added.parent.mkdir(exist_ok=True)
        if name == "torch":
            added.symlink_to(tmp_path / "elsewhere")
        else:
            added.write_text("what somebody put into prepared data")
        with pytest.raises(UserError, match="is not the code that Python finds here"):
            OwnDeclaration(recipe.task).host_environment(recipe, data)
        added.unlink()
    assert OwnDeclaration(recipe.task).host_environment(recipe, data) == environment


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module_here:Thing", "PYTHONPATH"),
        ("echelon.errors:Nothing", "has no Nothing"),
        ("__main__:Thing", "use a module"),
        ("subprocess:Popen", "Python's own"),
        ("idlelib.idle:main", "Python's own"),
    ],
)
def test_what_cannot_be_imported_says_why(path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, path)
    with pytest.raises(UserError, match=message):
        import_own(path)


def test_a_path_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, "")
    with pytest.raises(UserError, match=r"package\.module:name"):
        allow(["os.system"])
    assert os.environ[ALLOWED_VARIABLE] == ""


def test_a_packages_sources_are_all_of_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts" / "nets").mkdir(parents=True)
    for name in ("__init__", "tasks", "nets/__init__", "nets/small"):
        (tmp_path / "parts" / f"{name}.py").write_text(f"# {name}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert sorted(read_sources(["parts.tasks:A", "parts.nets:B"])) == [
        "parts/__init__.py",
        "parts/nets/__init__.py",
        "parts/nets/small.py",
        "parts/tasks.py",
    ]
