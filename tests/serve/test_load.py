from __future__ import annotations

import asyncio

import pytest
from bench.bench_serve import put_under_load

from echelon.runfolder import RunFolder
from tests.serve.served import serve


@pytest.mark.slow
def test_fifty_clients_at_once_are_all_answered(run: RunFolder) -> None:
    with serve(run.path, "--requests-per-second", "1000000") as served:
        load = asyncio.run(put_under_load(served.address, clients=50, seconds=10))
        assert set(load.statuses) == {"200"}
        assert load.percentile(0.99) > 0
        assert served.stop() == 0
