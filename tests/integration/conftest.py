from __future__ import annotations

import pytest

from tests.integration.runs import Undisturbed, train_undisturbed


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """undisturbed("train.steps=40", workers=2): a run of the toy recipe that nothing happened to, trained once."""
    return train_undisturbed(tmp_path_factory.mktemp("undisturbed"))
