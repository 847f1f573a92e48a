"""Translating with PyTorch: our own beam search, in bf16 if the processor supports it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from echelon.inference.decoding import DecodedSentence, Decoding, SourceSentence
from echelon.models.alignment import align
from echelon.models.beam_search import Hypothesis, Search, beam_search
from echelon.models.low_precision import in_low_precision
from echelon.models.sampling import Sampling, sample
from echelon.models.sequences import Sequences
from echelon.models.transformer import Transformer
from echelon.train.precision import Precision


class TorchEngine:
    """Implements `Engine`."""

    name = "torch"

    def __init__(self, model: Transformer, precision: Precision, device: torch.device) -> None:
        model = model.to(device).eval()
        self.model = model if precision.dtype == torch.float32 else in_low_precision(model, precision.dtype)
        self._precision = precision
        self._device = device

    @torch.inference_mode()
    def search(self, jobs: Sequence[SourceSentence], decoding: Decoding) -> list[list[DecodedSentence]]:
        source = Sequences.of([job.tokens for job in jobs], self._device)
        prefixes = [job.prefix for job in jobs]
        with self._precision.autocast():
            found = self._look(source, decoding, prefixes)
            return [
                self._with_attention(job, hypotheses, decoding)
                for job, hypotheses in zip(jobs, found, strict=True)
            ]

    def _look(
        self, source: Sequences, decoding: Decoding, prefixes: list[list[int]]
    ) -> list[list[Hypothesis]]:
        if decoding.temperature is None:
            return beam_search(self.model, source, as_search(decoding), prefixes)
        generator = torch.Generator(self._device)
        generator.seed() if decoding.seed is None else generator.manual_seed(decoding.seed)
        sampling = Sampling(as_search(decoding), decoding.temperature, decoding.top_k)
        return sample(self.model, source, sampling, generator, prefixes)

    def _with_attention(
        self, job: SourceSentence, found: list[Hypothesis], decoding: Decoding
    ) -> list[DecodedSentence]:
        results = [DecodedSentence(hypothesis.tokens, hypothesis.score) for hypothesis in found]
        if decoding.alignment:
            best = results[0]
            weights = align(self.model, job.tokens, best.tokens).tolist() if best.tokens else []
            results[0] = DecodedSentence(best.tokens, best.score, weights)
        return results


def as_search(decoding: Decoding) -> Search:
    """The same options as the beam search takes them."""
    return Search(
        beam=max(decoding.beam, decoding.n_best),
        n_best=decoding.n_best,
        length_penalty=decoding.length_penalty,
        min_length=decoding.min_length,
        longest=decoding.max_length,
    )


def computes_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than float32 here."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
