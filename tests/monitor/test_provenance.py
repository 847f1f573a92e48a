"""Where a run comes from, against a real git repository."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from echelon.monitor.provenance import collect_provenance, git_state


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("one\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_checkout_has_its_commit_and_no_diff(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert git_state(checkout / "code.py") == {"commit": commit, "diff": ""}


def test_uncommitted_changes_are_kept_staged_or_not(checkout: Path) -> None:
    (checkout / "code.py").write_text("one\ntwo\n")
    git(checkout, "add", "code.py")
    (checkout / "code.py").write_text("one\ntwo\nthree\n")
    state = git_state(checkout / "code.py")
    assert state is not None
    assert "+two\n+three\n" in state["diff"]


def test_a_diff_in_another_encoding_does_not_stop_a_run(checkout: Path) -> None:
    (checkout / "code.py").write_bytes("Käse\n".encode("latin-1"))
    state = git_state(checkout / "code.py")
    assert state is not None
    assert "+K\ufffdse" in state["diff"]


def test_a_huge_diff_is_cut(checkout: Path) -> None:
    (checkout / "code.py").write_text("x" * 99 + "\n" * 300_000)
    state = git_state(checkout / "code.py")
    assert state is not None
    assert len(state["diff"]) == 200_000


def test_an_installed_package_has_no_git_state(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (checkout / "untracked.py").write_text("")
    assert git_state(checkout / "untracked.py") is None
    assert git_state(tmp_path_factory.mktemp("outside") / "file.py") is None


def test_without_git_there_is_no_git_state(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_state(checkout / "code.py") is None


def test_provenance_says_how_the_run_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["echelon", "train", "my recipe.toml"])
    monkeypatch.chdir(tmp_path)
    found = json.loads(json.dumps(collect_provenance(["a", "b"])))
    assert found["command"] == "echelon train 'my recipe.toml'"
    assert found["folder"] == str(tmp_path)
    assert found["hosts"] == ["a", "b"]
    assert found["versions"]["torch"].startswith("2.")
    assert set(found["versions"]) >= {"echelon", "numpy", "sacrebleu"}
    assert datetime.fromisoformat(found["time"]).tzinfo is not None
    assert len(collect_provenance()["hosts"]) == 1


def test_the_command_is_kept_without_secrets_in_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "echelon",
        "train",
        "https://me:s3cr3t@h/recipe.toml?sig=s3cr3t",
        "--set",
        "a=sftp://me:s3cr3t@h/x",
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert "s3cr3t" not in collect_provenance()["command"]
