"""A step's workload: FLOPs and gradient bytes by layer, input, memory, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from echelon.data.batch_plan import AnyPrepared
from echelon.data.images.image_store import PreparedImages
from echelon.data.prepared import Prepared
from echelon.explain.checkpoints import CheckpointPart, checkpoint_parts, numbers_per_parameter
from echelon.explain.description import Description
from echelon.explain.hardware import NumberFormat
from echelon.explain.image_description import num_classes
from echelon.explain.text_description import mean_tokens, recipe_shape
from echelon.recipe.schema import (
    ClassificationRecipe,
    ExchangeClass,
    ExchangeName,
    ExchangeSettings,
    Recipe,
    TranslationRecipe,
)
from echelon.recipe.sizes import image_shape, model_pixels
from echelon.recipe.tasks import find_task
from echelon.shapes import image_models
from echelon.shapes import transformer as tf
from echelon.shapes.factors import gains_by_factors
from echelon.shapes.image_models import ImageShape
from echelon.shapes.transformer import TokenCounts, TransformerShape

FLOAT32_BYTES = 4
WIRE_BYTES = {"float32": 4.0, "bf16": 2.0, "fp16": 2 + 4 / 512, "int8": 1 + 4 / 512}
"""Of one number, with its part of the scales."""
TOKENS_PER_CORE_S = 2e7
"""Of both sides, that a worker puts together from prepared text. These rates are processor time of one core of the
machine that Echelon is developed on (AMD EPYC), measured once and roughly: they tell whether loading matters."""
PIXELS_PER_CORE_S = {"cut": 6e7, "resized": 3.6e7}
"""Of what the model sees, from prepared pictures, which are not compressed: cut out, mirrored and normalised; with
random-resized crops."""


@dataclass(frozen=True)
class Layer:
    """A part of the model, in the order of backward."""

    name: str
    flops: float
    """Of the forward pass over the whole step; backward takes twice as many."""
    gradient_bytes: float
    """That are ready when backward has passed it."""


@dataclass(frozen=True)
class Workload:
    """One training step, on any hardware."""

    name: str
    layers: tuple[Layer, ...]
    """In the order of backward: the last layer of the model first."""
    matrices: tuple[tuple[int, int], ...]
    """Shapes of the gradients that a low-rank exchange can shorten."""
    tables: int
    """Numbers in tables of embeddings."""
    slots: int
    """Into how many parts a step can be shared out."""
    objects: float
    """Target tokens, or pictures, of a step."""
    unit: str
    number_format: NumberFormat
    optimiser_numbers: int
    """Float32 numbers kept for each parameter, the weight itself included."""
    activation_bytes: float
    """Of one slot, kept for backward."""
    shares_optimiser: bool = False
    """Whether each worker keeps only a part of what the optimiser keeps for the weights."""
    steps: int | None = None
    checkpoint_every: int | None = None
    settings: ExchangeSettings = field(default_factory=ExchangeSettings)
    """Of the exchanges."""
    exchange: ExchangeName = "all_reduce"
    """Which of them the recipe names."""
    allowed: tuple[ExchangeClass, ...] = ("exact",)
    """What "auto" may choose."""
    checkpoint: tuple[CheckpointPart, ...] = ()
    """What one is made of."""
    assumed_tokens: int | None = None
    """Most tokens of a step, if training will determine that number and a stand-in is used until then."""
    loading_core_s: float = 0.0
    """Seconds of one core to load a step's slots: each worker loads its own, and computes nothing meanwhile."""
    input_core_s: float = 0.0
    """Seconds of one core to make the input of a step ready where all of a host's do that beside training, as the
    loaders of other systems do."""

    @property
    def parameters(self) -> float:
        return self.gradient_bytes / FLOAT32_BYTES

    @property
    def gradient_bytes(self) -> float:
        return sum(layer.gradient_bytes for layer in self.layers)

    @property
    def forward_flops(self) -> float:
        return sum(layer.flops for layer in self.layers)

    @property
    def training_flops(self) -> float:
        return 3 * self.forward_flops

    def checkpoint_bytes(self, workers: int = 1) -> float:
        return sum(part.bytes(workers) for part in self.checkpoint)

    @property
    def low_rank_bytes(self) -> float:
        """Of the factors that stand for the matrices that gain by it, of the tables, and of all else as it is."""
        replaced, factors = self.tables, 0
        for rows, columns in self.matrices:
            if gains_by_factors(rows, columns, self.settings.rank):
                replaced += rows * columns
                factors += self.settings.rank * (rows + columns)
        on_the_wire = factors * WIRE_BYTES[self.settings.wire] + self.tables * WIRE_BYTES["int8"]
        return self.gradient_bytes - FLOAT32_BYTES * replaced + on_the_wire


class WorkloadDeclaration(Protocol):
    """What a task says about the work of a step."""

    def workload(self, recipe: Recipe, prepared: AnyPrepared | None, steps: int | None) -> Workload: ...


def recipe_workload(recipe: Recipe, prepared: AnyPrepared | None, description: Description) -> Workload:
    """A recipe's step."""
    task: WorkloadDeclaration = find_task(recipe.task)
    return task.workload(recipe, prepared, description.steps)


def image_workload(
    recipe: ClassificationRecipe, prepared: PreparedImages | None, steps: int | None
) -> Workload:
    """A step of image classification."""
    shape = image_shape(recipe.model, num_classes(recipe, prepared), model_pixels(recipe.data))
    pictures = recipe.train.batch_images
    variation = "cut" if recipe.data.augment.min_area is None else "resized"
    return Workload(
        name=recipe.name,
        layers=image_layers(shape, pictures),
        matrices=image_models.matrices(shape),
        tables=0,
        slots=recipe.train.slots,
        objects=pictures,
        unit="images",
        number_format="float32" if recipe.train.precision == "float32" else "half",
        optimiser_numbers=numbers_per_parameter(recipe),
        shares_optimiser=recipe.train.shard == "optimiser",
        activation_bytes=image_activations(shape, pictures // recipe.train.slots),
        steps=steps,
        checkpoint_every=recipe.checkpoint.fixed_interval,
        settings=recipe.exchange,
        exchange=recipe.train.exchange,
        allowed=tuple(recipe.train.exchange_may),
        checkpoint=checkpoint_parts(
            recipe, image_models.parameter_count(shape), image_models.matrices(shape)
        ),
        loading_core_s=pictures * shape.pixels**2 / PIXELS_PER_CORE_S[variation],
    )


def translation_workload(recipe: TranslationRecipe, prepared: Prepared | None, steps: int | None) -> Workload:
    """A step of translation."""
    shape = recipe_shape(recipe, prepared)
    tokens = mean_tokens(recipe, prepared)
    computed = tokens.times(recipe.train.passes)
    return Workload(
        name=recipe.name,
        layers=transformer_layers(shape, computed),
        matrices=tf.matrices(shape),
        tables=tf.table_numbers(shape),
        slots=recipe.train.slots,
        objects=tokens.target,
        unit="target tokens",
        number_format="float32" if recipe.train.precision == "float32" else "half",
        optimiser_numbers=numbers_per_parameter(recipe),
        shares_optimiser=recipe.train.shard == "optimiser",
        activation_bytes=transformer_activations(shape, computed) / recipe.train.slots,
        steps=steps,
        checkpoint_every=recipe.checkpoint.fixed_interval,
        settings=recipe.exchange,
        exchange=recipe.train.exchange,
        allowed=tuple(recipe.train.exchange_may),
        checkpoint=checkpoint_parts(recipe, tf.parameter_count(shape), tf.matrices(shape)),
        assumed_tokens=recipe.train.batch_tokens if recipe.train.batch == "auto" else None,
        loading_core_s=(tokens.source + tokens.target) / TOKENS_PER_CORE_S,
    )


def transformer_layers(shape: TransformerShape, tokens: TokenCounts) -> tuple[Layer, ...]:
    """A Transformer's layers in the order of backward; shared embeddings are ready last of all."""
    flops = tf.forward_flops(shape, tokens)
    counts: dict[str, int] = {}
    for parameter in tf.parameters(shape):
        name = parameter.name if parameter.kind == "embedding" else parameter.layer
        counts[name] = counts.get(name, 0) + parameter.count
    output = "embeddings.output" if "embeddings.output" in counts else None
    order = [f"decoder.layers.{n}" for n in reversed(range(shape.decoder_layers))]
    order += [f"encoder.layers.{n}" for n in reversed(range(shape.encoder_layers))]
    first = Layer("output", flops["output"], FLOAT32_BYTES * counts.get(output or "", 0))
    rest = [Layer(name, flops[name], FLOAT32_BYTES * counts[name]) for name in order]
    placed = {output, *order}
    left = sum(count for name, count in counts.items() if name not in placed)
    return (first, *rest, Layer("embeddings", 0, FLOAT32_BYTES * left))


def transformer_activations(shape: TransformerShape, tokens: TokenCounts) -> float:
    """Bytes that forward keeps for backward, roughly: about 10 vectors of the model's width and 2 of the inner one for
    each token and layer, attention's scores, and the probabilities of one chunk of outputs."""
    per_token = 10 * shape.d_model + 2 * shape.d_ff
    decoder = per_token + 4 * shape.d_model
    numbers = (
        tokens.source * per_token * shape.encoder_layers + tokens.target * decoder * shape.decoder_layers
    )
    scores = shape.heads * (
        tokens.source_squares * shape.encoder_layers
        + (tokens.target_squares + tokens.products) * shape.decoder_layers
    )
    return FLOAT32_BYTES * (numbers + scores)


def image_layers(shape: ImageShape, pictures: int) -> tuple[Layer, ...]:
    """The parts of a network for pictures in the order of backward."""
    flops: dict[str, int] = {}
    for layer in image_models.layers(shape):
        flops[layer.part] = flops.get(layer.part, 0) + layer.flops
    counts = image_models.parameters_by_part(shape)
    return tuple(
        Layer(part, flops[part] * pictures, FLOAT32_BYTES * counts[part]) for part in reversed(list(counts))
    )


def image_activations(shape: ImageShape, pictures: int) -> float:
    """Bytes that forward keeps for backward, roughly: what each convolution, its norm and its rectifier put out."""
    numbers = 0.0
    for layer in image_models.layers(shape):
        numbers += sum(
            3 * layer.flops / (2 * prod(size[1:])) for _, size in layer.parameters if prod(size[1:]) > 1
        )
    return FLOAT32_BYTES * numbers * pictures
