"""Scorers for the written formats, to be compared with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from echelon.data.tokeniser import BOS
from echelon.export.edge_runner import OnnxModel
from echelon.export.parity import TokenPair
from echelon.extras import require_extra
from echelon.inference.ctranslate2_engine import CTranslate2Engine
from echelon.inference.decoding import Decoding, SourceSentence


class CTranslate2Scorer:
    def __init__(self, folder: Path, threads: int) -> None:
        self._engine = CTranslate2Engine(folder, threads)

    def score(self, pairs: Sequence[TokenPair]) -> list[list[float]]:
        return self._engine.score(pairs)

    def greedy(self, sources: Sequence[list[int]]) -> list[list[int]]:
        found = self._engine.search([SourceSentence(source) for source in sources], Decoding(beam=1))
        return [best[0].tokens for best in found]


class OnnxScorer:
    def __init__(self, folder: Path, threads: int) -> None:
        require_extra("onnxruntime", "export")
        self._model = OnnxModel(folder, threads)

    def score(self, pairs: Sequence[TokenPair]) -> list[list[float]]:
        """One sentence at a time, through the cache: what a translation does."""
        scores = []
        for source, target in pairs:
            memory = self._model.encode([source])
            cache = self._model.first_cache(memory, beam=1)
            own = []
            for position, (read, wanted) in enumerate(zip([BOS, *target], target, strict=False)):
                steps, cache = self._model.step(np.array([[read]]), position, memory, cache)
                own.append(float(steps[0, 0, wanted]))
            scores.append(own)
        return scores

    def greedy(self, sources: Sequence[list[int]]) -> list[list[int]]:
        return [found[0][0] for found in self._model.search(list(sources), beam=1, penalty=0.6)]
