"""Which worker updates which part of the flat buffers, if the optimiser is shared out; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from echelon.recipe.workers import share_of


@dataclass(frozen=True)
class Portion:
    """Numbers of the flat buffers that are summed together."""

    start: int
    end: int
    pieces: tuple[slice, ...]
    """Each worker's, by rank; some may be empty."""


def share_out(blocks: Sequence[slice], size: int, portion_numbers: int) -> list[Portion]:
    """Portions of about so many numbers, each shared out over `size` workers; no block is divided."""
    portions = _portions(blocks, portion_numbers)
    return [_share(portion, size, number) for number, portion in enumerate(portions)]


def _portions(blocks: Sequence[slice], portion_numbers: int) -> Iterator[list[slice]]:
    portion: list[slice] = []
    for block in blocks:
        portion.append(block)
        if block.stop - portion[0].start >= portion_numbers:
            yield portion
            portion = []
    if portion:
        yield portion


def _share(blocks: Sequence[slice], size: int, number: int) -> Portion:
    """What is left over if blocks cannot be shared evenly goes to another worker in each portion."""
    borders = [block.start for block in blocks] + [blocks[-1].stop]
    shares = [share_of(len(blocks), (rank + number) % size, size) for rank in range(size)]
    pieces = tuple(slice(borders[share.start], borders[share.stop]) for share in shares)
    return Portion(borders[0], borders[-1], pieces)


def spans_of(portions: Sequence[Portion], rank: int) -> list[slice]:
    """What a worker updates."""
    pieces = [portion.pieces[rank] for portion in portions]
    return [piece for piece in pieces if piece.start < piece.stop]


def overlap(one: slice, other: slice) -> slice:
    """What is in both; it may be empty."""
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
