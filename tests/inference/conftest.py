from __future__ import annotations

import pytest

from echelon import Translator
from echelon.runfolder import RunFolder
from tests.small_run import make_small_run


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_small_run(tmp_path_factory.mktemp("inference") / "run", steps=150)


@pytest.fixture(scope="package")
def translator(run: RunFolder) -> Translator:
    return Translator.load(run.path)
