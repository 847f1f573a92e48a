"""Requests and answers as they are on the wire; the OpenAPI document is made from these."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from echelon.inference.decoding import LARGEST_BEAM, SEEDS, Decoding, Translation
from echelon.inference.translator import with_defaults

SourceLine = Annotated[str, Field(max_length=1 << 20)]


class TranslateRequest(BaseModel):
    """Lines to translate, and how. Defaults are those of the model's recipe."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    text: SourceLine | Annotated[list[SourceLine], Field(max_length=4096)]
    """A line, or several; each is translated by itself."""
    beam: Annotated[int, Field(ge=1, le=16)] | None = None
    """Hypotheses followed at a time; 1 is greedy search."""
    n_best: Annotated[int, Field(ge=1, le=16)] | None = None
    """Alternatives wanted; the beam is at least as wide."""
    length_penalty: Annotated[float, Field(ge=-5, le=5)] | None = None
    """More favours longer translations."""
    temperature: Annotated[float, Field(gt=0.01, le=10)] | None = None
    """Draw at random in place of searching; 1: as likely as the model finds them."""
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Draw among this many of the likeliest tokens; only with a temperature."""
    seed: Annotated[int, Field(ge=0, lt=SEEDS)] | None = None
    """Draw the same again; only with a temperature."""
    prefix: Annotated[str, Field(max_length=2000)] | None = None
    """What every translation begins with, in whole words."""
    min_length: Annotated[int, Field(ge=0, le=256)] | None = None
    """In tokens."""
    max_length: Annotated[int, Field(ge=1, le=1024)] | None = None
    """In tokens."""
    sentences: bool = False
    """Translate each sentence of a line by itself."""
    alignment: bool = False
    """Also say which source piece each target piece looked at."""

    @property
    def lines(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else self.text

    def decoding(self, defaults: Decoding) -> Decoding:
        """UserError if the options contradict each other."""
        beam = self.beam
        if self.temperature is None:
            beam = max(self.beam or defaults.beam, self.n_best or 1)
        return with_defaults(
            defaults,
            beam=min(beam, LARGEST_BEAM) if beam else None,
            n_best=self.n_best,
            length_penalty=self.length_penalty,
            temperature=self.temperature,
            top_k=self.top_k,
            seed=self.seed,
            min_length=self.min_length,
            max_length=self.max_length,
            sentences=self.sentences,
            alignment=self.alignment,
        )


class AlternativeAnswer(BaseModel):
    text: str
    score: float = Field(description="Log-probability, divided by the length penalty.")


class AlignmentAnswer(BaseModel):
    source: list[str] = Field(description="Subword pieces; ▁ stands for the space before a word.")
    target: list[str]
    weights: list[list[float]] = Field(description="A row for each target piece; rows sum to 1.")


class TranslationAnswer(BaseModel):
    text: str
    score: float
    alternatives: list[AlternativeAnswer] = Field(description="Best first; the first is `text`.")
    alignment: AlignmentAnswer | None = None

    @classmethod
    def of(cls, translation: Translation) -> TranslationAnswer:
        alignment = translation.alignment
        return cls(
            text=translation.text,
            score=translation.score,
            alternatives=[
                AlternativeAnswer(text=one.text, score=one.score) for one in translation.alternatives
            ],
            alignment=None
            if alignment is None
            else AlignmentAnswer(
                source=alignment.source,
                target=alignment.target,
                weights=[[round(weight, 4) for weight in row] for row in alignment.weights],
            ),
        )


class TranslateAnswer(BaseModel):
    translations: list[TranslationAnswer] = Field(description="One a line, in order.")
    seconds: float


class ModelAnswer(BaseModel):
    """What is served."""

    name: str
    task: str
    source_language: str
    target_language: str
    engine: str = Field(description="What computes: ctranslate2 or torch.")
    precision: str
    beam: int
    length_penalty: float
    lines: int = Field(description="Most lines of a request.")
    characters: int = Field(description="Most characters of a request.")


class ClassAnswer(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    name: str = Field(alias="class")
    probability: float


class ClassifyAnswer(BaseModel):
    classes: list[ClassAnswer] = Field(description="The likeliest first.")
    seconds: float


class PictureModelAnswer(BaseModel):
    """What is served."""

    name: str
    task: str
    classes: list[str]
    pixels: int = Field(description="Height and width of what the model sees of an image.")
    engine: str = Field(description="What computes: onnxruntime or torch.")
    precision: str
    bytes: int = Field(description="Most bytes of an image.")


class StateAnswer(BaseModel):
    status: str


class ErrorAnswer(BaseModel):
    """What went wrong, for people."""

    error: str
