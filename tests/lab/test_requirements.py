from __future__ import annotations

import os
import shutil
import sys

import pytest

from echelon.errors import UserError
from echelon.lab.requirements import check_machine, find_program


@pytest.fixture
def root_on_linux(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/bin/{name}")
    return monkeypatch


def test_root_on_linux_with_all_programs_may_have_a_lab(root_on_linux: pytest.MonkeyPatch) -> None:
    check_machine()
    assert find_program("sshd") == "/bin/sshd"


def test_another_system_is_told(root_on_linux: pytest.MonkeyPatch) -> None:
    root_on_linux.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match=r"needs Linux.* this is darwin"):
        check_machine()


def test_a_user_who_is_not_root_is_told(root_on_linux: pytest.MonkeyPatch) -> None:
    root_on_linux.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=r"needs root.* sudo"):
        check_machine()


def test_all_missing_programs_are_told_with_their_packages(root_on_linux: pytest.MonkeyPatch) -> None:
    missing = ("tc", "unshare", "sshd")
    root_on_linux.setattr(shutil, "which", lambda name, path: None if name in missing else f"/bin/{name}")
    with pytest.raises(
        UserError, match=r"tc, unshare, sshd; on Debian: apt-get install iproute2 util-linux openssh-server$"
    ):
        check_machine()
    with pytest.raises(UserError, match=r"the lab needs sshd; on Debian: apt-get install openssh-server$"):
        find_program("sshd")
