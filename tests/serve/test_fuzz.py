"""Whatever the OpenAPI document allows, and much that it forbids, gets an answer that the document knows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from echelon.runfolder import RunFolder
from tests.serve.served import serve


@pytest.mark.slow
def test_schemathesis_finds_no_fault(run: RunFolder) -> None:
    with serve(run.path, "--engine", "torch", "--requests-per-second", "100000") as served:
        result = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.address}openapi.json"),
                *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance"),
                *("--max-examples", "60", "--mode", "all", "--seed", "1", "--request-timeout", "30"),
                *("--suppress-health-check", "all", "--no-color"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
        assert served.stop() == 0
