from __future__ import annotations

import pytest

from echelon.runfolder import RunFolder
from tests.small_run import make_small_run


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_small_run(tmp_path_factory.mktemp("export") / "run", steps=150)
