"""Settings that hold for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The machine may be busy with other work: slowness is not a failure.
settings.register_profile("echelon", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("echelon")
