"""BLEU and chrF as sacreBLEU computes them, with the signature that makes them comparable."""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from echelon.recipe.schema import Tokenisation


def score_translations(
    outputs: Sequence[str], references: Sequence[str], tokenisation: Tokenisation = "13a"
) -> tuple[dict[str, float], str]:
    """Corpus BLEU and chrF, cased, and BLEU's signature, which says how the text was tokenised for it.

    sacreBLEU warns if text looks tokenised already; with tokenisation "none" that is what is meant.
    """
    bleu, chrf = BLEU(tokenize=tokenisation, force=tokenisation == "none"), CHRF()
    metrics = {
        "bleu": float(bleu.corpus_score(list(outputs), [list(references)]).score),
        "chrf": float(chrf.corpus_score(list(outputs), [list(references)]).score),
    }
    return metrics, str(bleu.get_signature())
