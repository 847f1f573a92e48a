"""Which matrices a low-rank exchange shortens."""

from __future__ import annotations


def gains_by_factors(rows: int, columns: int, rank: int) -> bool:
    """Whether two factors of `rank` columns have less than half of the matrix's numbers."""
    return 2 * rank * (rows + columns) < rows * columns
