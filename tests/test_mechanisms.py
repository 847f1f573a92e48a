"""The list of mechanisms that tests/mechanisms.py switches off speaks of the code as it is."""

import pytest

from tests.mechanisms import ROOT, Mechanism, all_mechanisms


@pytest.mark.parametrize("mechanism", all_mechanisms(), ids=lambda mechanism: mechanism.name)
def test_a_mechanism_is_in_the_source_once(mechanism: Mechanism) -> None:
    assert mechanism.source(ROOT).read_text().count(mechanism.code) == 1
    assert all((ROOT / test).is_file() for test in mechanism.tests)
