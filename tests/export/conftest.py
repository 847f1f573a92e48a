from __future__ import annotations

import pytest

from echelon.runfolder import RunFolder
from tests.untrained_run import make_untrained_run


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_untrained_run(tmp_path_factory.mktemp("export") / "run")
