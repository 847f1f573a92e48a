from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echelon.data import duplicates
from echelon.data.duplicates import first_occurrences, pair_digests


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.integers(0, 20).map(lambda i: b"line %d" % i), max_size=80),
    partition_pairs=st.integers(1, 100),
    scan_pairs=st.integers(1, 30),
)
def test_first_of_each_kind_is_found_in_any_partitioning(
    lines: list[bytes], partition_pairs: int, scan_pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "SCAN_PAIRS", scan_pairs)
    path = tmp_path / "digests"
    path.write_bytes(pair_digests(lines))
    expected = [line not in lines[:index] for index, line in enumerate(lines)]
    assert first_occurrences(path, partition_pairs).tolist() == expected
