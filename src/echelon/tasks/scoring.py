"""BLEU and chrF as sacreBLEU computes them, with the signature that makes them comparable."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


def score_translations(outputs: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], str]:
    """Corpus BLEU and chrF (cased, untokenised text, sacreBLEU's defaults), and BLEU's signature."""
    bleu, chrf = BLEU(), CHRF()
    metrics = {
        "bleu": float(bleu.corpus_score(list(outputs), [list(references)]).score),
        "chrf": float(chrf.corpus_score(list(outputs), [list(references)]).score),
    }
    return metrics, str(bleu.get_signature())
