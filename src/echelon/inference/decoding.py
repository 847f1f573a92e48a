"""Search options and results: plain values that every engine, the server and the library share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from echelon.errors import UserError

LARGEST_BEAM = 64
SEEDS = 2**31


@dataclass(frozen=True)
class Decoding:
    """Options of the search for a translation. Lengths count the target's tokens (subwords)."""

    beam: int = 4
    """Hypotheses followed at a time; 1 is greedy search."""
    n_best: int = 1
    """Alternatives wanted for each line: at most `beam`, or the number of samples."""
    length_penalty: float = 0.6
    """Exponent of the GNMT length penalty: more favours longer translations, 0 plain probability."""
    min_length: int = 0
    """No end of sentence before this many tokens."""
    max_length: int | None = None
    """A translation is cut off here; by default one and a half source lengths plus 20 after its prefix."""
    temperature: float | None = None
    """Draw at random in place of searching: 1 from the model's own probabilities, less is more cautious."""
    top_k: int = 0
    """When drawing, only among this many most likely tokens; 0: among all."""
    seed: int | None = None
    """The same seed draws the same translations of the same lines on the same machine."""
    sentences: bool = False
    """Translate each sentence of a line by itself, not only those of a line too long for the model."""
    alignment: bool = False
    """Also say which source token each target token looked at."""

    def __post_init__(self) -> None:
        problems = [message for is_wrong, message in self._problems() if is_wrong]
        if problems:
            raise UserError("; ".join(problems))

    def _problems(self) -> list[tuple[bool, str]]:
        is_sampling = self.temperature is not None
        return [
            (not 1 <= self.beam <= LARGEST_BEAM, f"beam = {self.beam} must be from 1 to {LARGEST_BEAM}"),
            (self.n_best < 1, f"n_best = {self.n_best} must be at least 1"),
            (
                not is_sampling and self.n_best > self.beam,
                f"n_best = {self.n_best} is more than beam = {self.beam}; use a wider beam",
            ),
            (self.n_best > LARGEST_BEAM, f"n_best = {self.n_best} must be at most {LARGEST_BEAM}"),
            (self.min_length < 0, f"min_length = {self.min_length} must not be negative"),
            (
                self.max_length is not None and self.max_length < max(1, self.min_length),
                f"max_length = {self.max_length} must be at least 1 and min_length = {self.min_length}",
            ),
            (
                is_sampling and not 0 < (self.temperature or 0) <= 100,
                f"temperature = {self.temperature} must be over 0 and at most 100",
            ),
            (self.top_k < 0, f"top_k = {self.top_k} must not be negative"),
            (
                self.top_k == 1 and self.n_best > 1,
                f"top_k = 1 always draws the same: n_best = {self.n_best} needs a larger one",
            ),
            (
                self.seed is not None and not 0 <= self.seed < SEEDS,
                f"seed = {self.seed} must be from 0 to {SEEDS - 1}",
            ),
            (
                not is_sampling and bool(self.top_k or self.seed is not None),
                "top_k and seed are for sampling; give a temperature too",
            ),
            (
                not abs(self.length_penalty) <= 10,
                f"length_penalty = {self.length_penalty} must be from -10 to 10",
            ),
        ]


@dataclass(frozen=True)
class SourceSentence:
    """One sentence to translate, as tokens."""

    tokens: list[int]
    """The source, ending with the end-of-sentence token."""
    prefix: list[int] = field(default_factory=list)
    """What the translation begins with."""


@dataclass(frozen=True)
class DecodedSentence:
    """One translation of a sentence, as tokens."""

    tokens: list[int]
    score: float
    """Log-probability of what follows the prefix, divided by the length penalty."""
    attention: list[list[float]] | None = None
    """For each target token, how much it looked at each source token; rows sum to 1."""


class Engine(Protocol):
    """Computes translations: PyTorch or CTranslate2."""

    @property
    def name(self) -> str: ...

    def search(self, jobs: Sequence[SourceSentence], decoding: Decoding) -> list[list[DecodedSentence]]:
        """The `n_best` best translations of each sentence, best first; at least one each."""
        ...


@dataclass(frozen=True)
class Alternative:
    """One candidate translation."""

    text: str
    score: float
    """Log-probability, divided by the length penalty; of a line translated in parts, their sum."""


@dataclass(frozen=True)
class Alignment:
    """Which source piece each target piece looked at."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    """A row for each target piece, a number for each source piece; rows sum to 1."""


@dataclass(frozen=True)
class Translation:
    """The translation of a line."""

    alternatives: tuple[Alternative, ...]
    """Best first; at least one."""
    alignment: Alignment | None = None
    """The alignment of the best translation, if it was asked for."""

    @property
    def text(self) -> str:
        return self.alternatives[0].text

    @property
    def score(self) -> float:
        return self.alternatives[0].score

    def __str__(self) -> str:
        return self.text
