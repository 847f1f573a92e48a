from __future__ import annotations

from echelon.serve.limits import Limits, RateLimiter


def test_a_bucket_fills_again_and_belongs_to_one_client() -> None:
    now = [0.0]
    rates = RateLimiter(Limits(requests_per_second=2, burst=3), clock=lambda: now[0])
    assert [rates.seconds_to_wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rates.seconds_to_wait("b") == 0
    now[0] = 0.5
    assert [rates.seconds_to_wait("a") for _ in range(2)] == [0, 0.5]
    now[0] = 100
    assert [rates.seconds_to_wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
