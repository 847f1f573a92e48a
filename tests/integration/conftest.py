from __future__ import annotations

import functools
import os
import subprocess

import pytest

from echelon.runfolder import RunFolder
from tests.integration.runs import Undisturbed, train_words, write_toy_recipe


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """undisturbed("train.steps=40", workers=2): a run of the toy recipe that nothing happened to.

    Each is trained once, so it is there to be read, and no test may write to it.
    """
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe = write_toy_recipe(folder / "toy")
    environment = {**os.environ, "ECHELON_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}

    @functools.cache
    def train(*settings: str, workers: int) -> RunFolder:
        run = RunFolder(folder / f"run-{train.cache_info().misses}")
        command = [*train_words(recipe, run, *settings), "--workers", str(workers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return run

    return train
