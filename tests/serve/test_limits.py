from __future__ import annotations

from echelon.serve.limits import RateLimiter


def test_a_bucket_fills_again_and_belongs_to_one_client() -> None:
    now = [0.0]
    rates = RateLimiter(clock=lambda: now[0])
    assert [rates.seconds_to_wait("a", 2, 3) for _ in range(4)] == [0, 0, 0, 0.5]
    assert rates.seconds_to_wait("b", 2, 3) == 0
    now[0] = 0.5
    assert [rates.seconds_to_wait("a", 2, 3) for _ in range(2)] == [0, 0.5]
    now[0] = 100
    assert [rates.seconds_to_wait("a", 2, 3) for _ in range(4)] == [0, 0, 0, 0.5]
