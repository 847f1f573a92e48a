from __future__ import annotations

import pytest

from echelon import Translator
from echelon.runfolder import RunFolder
from tests.untrained_run import make_untrained_run


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_untrained_run(tmp_path_factory.mktemp("inference") / "run")


@pytest.fixture(scope="package")
def translator(run: RunFolder) -> Translator:
    return Translator.load(run.path)
