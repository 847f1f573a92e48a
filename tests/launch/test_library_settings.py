from __future__ import annotations

import os
import subprocess
import sys

import pytest

from echelon.launch.library_settings import thread_waiting


def test_waiting_threads_spin_briefly() -> None:
    assert thread_waiting({}) == {"GOMP_SPINCOUNT": "3000"}


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_how_the_user_lets_threads_wait_is_kept(name: str) -> None:
    assert thread_waiting({name: "active"}) == {}


def test_libgomp_reads_the_setting_that_the_command_line_makes() -> None:
    """libgomp prints what it has read when it is loaded, which must be after the command line has set it."""
    program = (
        "import sys; sys.argv = ['echelon', '--help']\n"
        "import echelon.cli\n"
        "try:\n    echelon.cli.main()\n"
        "except SystemExit:\n    import torch"
    )
    environment = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "OPENMP DISPLAY ENVIRONMENT" not in result.stderr:
        pytest.skip("this build of torch does not use libgomp")
    assert "GOMP_SPINCOUNT = '3000'" in result.stderr
