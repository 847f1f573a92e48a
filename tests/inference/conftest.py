from __future__ import annotations

import pytest

from echelon import Translator
from echelon.runfolder import RunFolder


@pytest.fixture(scope="session")
def run(trained_run: RunFolder) -> RunFolder:
    return trained_run


@pytest.fixture(scope="session")
def translator(run: RunFolder) -> Translator:
    return Translator.load(run.path)
