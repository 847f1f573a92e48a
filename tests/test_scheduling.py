from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.scheduling import group_of

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
@pytest.mark.parametrize("number", range(4))
def test_nothing(number): pass
"""


def test_files_stay_together_and_so_do_folders_with_costly_fixtures() -> None:
    assert group_of("tests/data/test_pool.py::test_it[a::b]") == "tests/data/test_pool.py"
    assert group_of("tests/lab/test_speed.py::test_it") == "tests/lab"


def test_each_file_s_tests_run_in_one_process(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "xdist", "-p", "tests.scheduling"]
    done = subprocess.run(
        [*command, "--numprocesses=2", "--dist=loadgroup", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    ran = re.findall(r"\[(gw\d)\].*PASSED.*(test_\w+\.py)", done.stdout)
    assert len(ran) == 8, done.stdout + done.stderr
    assert len(set(ran)) == 2, ran
