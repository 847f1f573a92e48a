"""The recipe: every key a user can set, its default and its meaning.

The docstring under a field is its documentation: the reference page (docs/recipe.md) is generated from them.
Checks that concern one key stand here; checks that need several keys stand in `checks.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
)
from pydantic_core import PydanticCustomError

from echelon.addresses import redact_url
from echelon.recipe.image_sections import ImageData, ImageEvaluation, ImageModel
from echelon.recipe.own_code import ImportPath
from echelon.recipe.section import Evaluation, Fraction, Section
from echelon.recipe.workers import parse_workers

SCHEMA_VERSION = 1

Metric = Literal["bleu", "chrf", "loss", "perplexity"]
Tokenisation = Literal["13a", "intl", "char", "zh", "none"]
ImageMetric = Literal["top1", "top5", "loss"]
LOWER_IS_BETTER = {"loss", "perplexity"}
"""The metrics that improve downwards."""


def _check_workers(value: object) -> object:
    try:
        parse_workers(value)
    except ValueError as error:
        raise PydanticCustomError("workers", str(error)) from None
    return value


class Download(Section):
    """A file that is downloaded if it is neither beside the recipe nor under ECHELON_DATA."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]
    """What corpora call it, and its path under ECHELON_DATA, a mirror or the cache."""
    urls: Annotated[list[str], Field(min_length=1)]
    """Where it is: http or https addresses, tried one after the other."""
    bytes: PositiveInt | None = None
    """Its size."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Its SHA-256. Where not given, that of the first fetch is written down, and later ones must have the same."""


class Corpus(Section):
    """A pair of text files, line i of one being the translation of line i of the other; one file that holds both sides;
    or the embedded corpus.

    Files may be plain, .gz, .xz, .bz2 or .zst. A relative path is looked for beside the recipe, then under the folder
    named by the environment variable ECHELON_DATA, then among the downloads. An http or https address is fetched, with
    the environment's value in place of `${ECHELON_URL_NAME}`: secrets in addresses are refused.
    """

    embedded: bool = False
    """Use the English-German corpus that Echelon generates itself; the keys below are then left out."""
    source: str | None = None
    """File with the sentences to translate from, one a line; of an .sgm file, one a segment."""
    target: str | None = None
    """File with their translations."""
    pairs: str | None = None
    """One file with both sides in place of `source` and `target`: .tsv, .tmx, or a gettext catalogue, .po or .mo."""
    columns: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] = Field(default=[1, 2])
    """pairs: the columns of source and target in a .tsv file; in a catalogue 1 is the message, 2 its translation."""
    archive: str | None = None
    """A .tar file, compressed or not, or a .zip file whose members the names above are. It is never unpacked."""
    pieces: bool = False
    """The lines are cut into pieces of `data.tokeniser` already, a space between two: "▁A ▁small ▁dog"."""
    accelerator: Literal["_", "&", "~"] | None = None
    """The lines are labels of an interface, and this marks the letters of keyboard shortcuts: "_Out" is read as "Out"
    ("_" is GTK's, "&" Qt's and Windows', "~" LibreOffice's)."""

    @property
    def label(self) -> str:
        """What messages call this corpus."""
        if self.embedded:
            return "embedded"
        names = [self.pairs] if self.pairs is not None else [self.source, self.target]
        return " | ".join(redact_url(str(name)) for name in names)


class TrainingCorpus(Corpus):
    """A corpus to train on."""

    weight: PositiveFloat = 1.0
    """How often this corpus is seen, relative to its size: 2.0 shows it twice in an epoch, 0.5 half of it (the
    next epoch takes the other half)."""


class Clean(Section):
    """Which training pairs are dropped. Validation and test sets are never filtered."""

    min_words: PositiveInt = 1
    """Fewest words a side may have."""
    max_words: PositiveInt = 80
    """Most words a side may have. A character of Chinese or Japanese counts as one, as do four of Thai, Lao, Khmer or
    Burmese."""
    max_ratio: Annotated[float, Field(ge=1.0)] = 9.0
    """Largest ratio of the longer side's words to the shorter side's."""
    drop_duplicates: bool = True
    """Keep only the first of pairs that are exactly alike."""
    drop_identical: bool = True
    """Drop pairs whose two sides are the same text."""
    unicode: Literal["NFC", "NFKC"] = "NFC"
    """Unicode normal form that both sides are brought to (this applies to every split)."""


class Data(Section):
    """The parallel text and how it is cut into pieces."""

    source_language: Annotated[str, Field(min_length=2)] = "en"
    """Language code of the source side."""
    target_language: Annotated[str, Field(min_length=2)] = "de"
    """Language code of the target side."""
    train: Annotated[list[TrainingCorpus], Field(min_length=1)]
    """One or more corpora to train on."""
    valid: Corpus
    """Sentences scored during training; they choose the best checkpoint."""
    test: Corpus | None = None
    """Sentences scored once, at the end."""
    vocabulary: Annotated[int, Field(ge=64, le=65536)] = 32768
    """Pieces of the joint vocabulary. A corpus too small for that many gets as many as it supports."""
    tokeniser: str | None = None
    """A SentencePiece model (pad 0, eos 1, bos 2, unk 3) to use in place of learning a vocabulary; `vocabulary` is then
    only what `describe` counts with before the data are prepared."""
    download: list[Download] = Field(default=[])
    """Files to download if they are missing."""
    mirrors: list[str] = Field(default=[])
    """Folders (relative to the recipe), or http and https addresses, that are asked for MIRROR/NAME before a
    download's own addresses."""
    max_tokens: PositiveInt = 256
    """Training pairs with a longer side than this, in pieces, are left out of training. Validation and test pairs with
    a side of more than 1,024 pieces, and more than this, do not count in the loss."""
    clean: Clean = Clean()
    """Which training pairs are dropped."""
    prepared: str | None = None
    """The address, s3://bucket/folder/KEY or gs://..., where `echelon prepare --to` has put these data; the corpora
    then need not be here."""


class Model(Section):
    """The Transformer. A preset gives the sizes; each can be overridden."""

    preset: Literal["tiny", "small", "base", "big"] = "base"
    """tiny: width 128, 4+4 layers; small: 256, 3+3; base: 512, 6+6; big: 1024, 6+6."""
    d_model: PositiveInt | None = None
    """Width of the model, in place of the preset's."""
    d_ff: PositiveInt | None = None
    """Inner width of the feed-forward layers, in place of the preset's."""
    heads: PositiveInt | None = None
    """Attention heads, in place of the preset's."""
    encoder_layers: PositiveInt | None = None
    """Encoder layers, in place of the preset's."""
    decoder_layers: PositiveInt | None = None
    """Decoder layers, in place of the preset's."""
    norm: Literal["pre", "post"] = "pre"
    """Layer normalisation before each sub-layer (and once at the end), or after it."""
    tied: bool = True
    """One matrix for source embedding, target embedding and output layer."""
    separate_source: bool = False
    """tied: the source embedding is a matrix of its own, and only the other two are one."""
    attention_biases: bool = False
    """Biases in the attention's projections."""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """What follows the first of the feed-forward layers. Echelon's own kernels know relu only; others are computed in
    plain PyTorch."""
    output_bias: bool = False
    """A bias on the logits that training does not change, as models that were converted have."""
    dropout: Fraction = 0.1
    """Dropout on the embeddings and on each sub-layer's output."""
    attention_dropout: Fraction = 0.0
    """Dropout on the attention weights."""
    activation_dropout: Fraction = 0.0
    """Dropout inside the feed-forward layers."""


ExchangeName = Literal["auto", "all_reduce", "compressed", "low_rank", "local", "parameter_server"]
ExchangeClass = Literal["exact", "compressed", "low_rank", "local"]


class Train(Section):
    """The length of training and what a step is, whatever is trained."""

    steps: PositiveInt | None = None
    """Number of optimiser updates. Give `steps` or `epochs`, exactly one."""
    epochs: PositiveFloat | None = None
    """Number of passes over the training data. Give `steps` or `epochs`, exactly one."""
    stop_at: PositiveInt | None = None
    """Save and leave after this step, unscored; the learning rate is still that of the whole length. The same command
    without it resumes."""
    slots: PositiveInt = 4
    """Micro-batches in a step. Workers share them out; the result does not depend on how many workers there are. A
    worker adds up the gradients of its slots: more slots make a larger batch without more memory."""
    workers: Annotated[int | str, PlainValidator(_check_workers)] = 1
    """Worker processes, unless `--workers` says otherwise; or a range such as "1:4": begin with 4, or with as
    many as there are cores, and continue with one fewer after a failure, down to 1. "auto" tries out on this machine
    whether few workers with many threads are faster, or many with few, and keeps to it; with `--hosts` it is one
    for each GPU or core of a host."""
    exchange: ExchangeName = "all_reduce"
    """How workers agree on the weights: the exact sum of gradients, the sum in fewer bytes, a low-rank one, replicas
    that train by themselves and agree now and then (DiLoCo), or servers that keep the weights. "auto" measures the line
    and a slot where several hosts begin, takes the fastest of those that `exchange_may` allows, and keeps to it."""
    exchange_may: list[ExchangeClass] = Field(default=["exact"], min_length=1)
    """What "auto" may choose. Only `exact` learns the same as one worker; the others learn nearly the same."""
    shard: Literal["none", "optimiser"] = "none"
    """"optimiser": each worker keeps and updates a part of what the optimiser keeps for the weights, so that this takes
    less memory the more workers there are. The result has the same bits. Needs `exchange = "all_reduce"`."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """Number format of the matrix products. Weights and optimiser state are always kept in float32."""
    average_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Score, save and use a running average of the weights, which keeps this share of itself at every step, e.g. 0.999;
    training itself continues with the unaveraged weights. By default there is no average."""
    clip_norm: PositiveFloat | None = None
    """Largest norm of the step's gradient; a longer one is scaled down to it."""
    init_from: str | None = None
    """What training starts from, for fine-tuning: a run folder, whose best weights and vocabulary are used, or a model
    of transformers, timm or torchvision (docs/using-a-model.md). A network for pictures may have other classes; its
    last layer then begins anew."""
    freeze: list[str] = Field(default=[])
    """Parts of the model that training does not change, by the beginning of their parameters' names, e.g.
    ["conv1", "bn1", "layer1"] or ["encoder"]. BatchNorm's running statistics still follow the data."""
    layer_rates: dict[str, PositiveFloat] = Field(default={})
    """Learning rates of parts of the model, as multiples of the schedule's, e.g. {layer1 = 0.1, fc = 10.0}; of several
    that fit a name, the longest counts."""
    log_every: PositiveInt = 10
    """Steps between two log lines on a screen without a terminal, and between two TensorBoard points."""

    @property
    def is_batch_auto(self) -> bool:
        """Whether the batch is yet to be found by measurement."""
        return False

    def with_batch_of(self, other: Self) -> Self:
        """These settings with the batch that another training of the recipe has found."""
        return self


class TranslationTrain(Train):
    """The length of training and what a step is."""

    batch_tokens: PositiveInt = 8192
    """Most tokens in a step, counting each pair by its longer side. Must divide evenly into `slots`."""
    batch: Literal["given", "auto"] = "given"
    """"auto" tries slots of growing size on this machine, while a pass over the data is at least ten steps, takes the
    largest that fits into its memory and is fast, and keeps to it: `batch_tokens` is then `slots` times that. It is for
    one machine: on several hosts, or inside mpirun and the like, give `batch_tokens`."""
    recompute: bool = False
    """Keep only the inputs of the model's layers for the gradient, and compute the rest once more (activation
    checkpointing): far less memory, a third more time."""
    kernels: Literal["auto", "off"] = "auto"
    """On a CPU, "auto" trains with Echelon's own C++ kernels, compiled at first use, and in plain PyTorch where no
    compiler is; "off" always trains in plain PyTorch. Both compute the same, up to rounding."""
    label_smoothing: Fraction = 0.1
    """Share of the probability spread evenly over the whole vocabulary in the training targets."""
    r_drop: NonNegativeFloat = 0.0
    """Every pair goes through the model twice, with other dropouts, and training draws the two predictions together
    (R-Drop): for little data, and for twice the work and memory of a slot. This is the weight, alpha in its paper,
    which has 5; 0 is off."""

    @property
    def is_batch_auto(self) -> bool:
        return self.batch == "auto"

    def with_batch_of(self, other: Self) -> Self:
        return self.model_copy(update={"batch": other.batch, "batch_tokens": other.batch_tokens})

    @property
    def passes(self) -> int:
        """How often a pair goes through the model in a step."""
        return 2 if self.r_drop else 1


class ImageTrain(Train):
    """The length of training and what a step of pictures is."""

    batch_images: PositiveInt = 128
    """Pictures in a step. Must divide evenly into `slots`; BatchNorm's statistics are those of a slot."""
    label_smoothing: Fraction = 0.0
    """Share of the probability spread evenly over all classes in the training targets."""


class ExchangeSettings(Section):
    """Settings of the exchange that `train.exchange` names; the others' are not looked at."""

    hosts: PositiveInt | None = None
    """So many hosts train, the first ones, and the others stand by; all of them if it is not given. "auto" sets it to 1
    if the line makes more hosts slower: then the fastest host trains."""
    bucket_bytes: PositiveInt = 2**23
    """all_reduce, compressed: gradients, in bytes of float32, that go out together while backward is still running.
    "auto" chooses them for the line."""
    hierarchical: bool = False
    """All but parameter_server: add up inside each host first, then between hosts, so that less goes through their
    network cards. With all_reduce the result is the same either way; with the others the order of a sum shows in its
    last bits. "auto" sets it if hosts have several workers each."""
    wire: Literal["bf16", "fp16", "int8"] = "bf16"
    """compressed: the numbers' format on the wire. int8 keeps what it rounds off and adds it to the next gradient.
    "auto" chooses between bf16 and int8. low_rank: the factors' format."""
    rank: PositiveInt = 16
    """low_rank: columns of the two factors that stand for each matrix of the gradient."""
    replicas: PositiveInt = 2
    """local: models that train by themselves, each on its share of a step's slots, whatever the number of workers."""
    every: PositiveInt = 16
    """local: steps between two agreements."""
    overlap: NonNegativeInt = 8
    """local: steps that are taken while an agreement is on its way; 0 waits for it."""
    outer_rate: PositiveFloat = 0.7
    """local: learning rate of the outer step, along the mean way that the replicas have gone."""
    outer_momentum: Fraction = 0.8
    """local: Nesterov momentum of the outer step. With 0, and a rate of 1, weights are averaged (local SGD)."""
    outer_wire: Literal["float32", "bf16", "fp16", "int8"] = "bf16"
    """local: format of the way on the wire."""
    servers: PositiveInt = 1
    """parameter_server: processes of the run that keep the weights and the optimiser, each a part, and train nothing;
    always at least one process is left to train."""
    synchronous: bool = True
    """parameter_server: all workers share every step's slots. Otherwise each worker takes whole steps, and its update
    is of weights that others may have changed meanwhile."""
    backup_workers: NonNegativeInt = 0
    """parameter_server, synchronous: a step does not wait for this many workers, the slowest in it."""
    staleness: PositiveInt = 4
    """parameter_server, not synchronous: most updates by others between a worker's weights and its own update."""


class Adam(Section):
    """Adam, with weight decay added to the gradient (L2)."""

    kind: Literal["adam"] = "adam"
    """Which optimiser this is."""
    beta1: Fraction = 0.9
    """Decay of the mean of gradients."""
    beta2: Fraction = 0.98
    """Decay of the mean of squared gradients."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; never on biases and norms."""


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    """Which optimiser this is."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay; never on biases and norms."""


class Sgd(Section):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd"]
    """Which optimiser this is."""
    momentum: Fraction = 0.9
    """Share of the last update carried into the next."""
    nesterov: bool = False
    """Look ahead along the momentum before taking the gradient's step."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; never on biases and norms, but for the bias of speednet's first layer."""
    vector_rate: PositiveFloat = 1.0
    """Learning rate of biases and norms, but for that one, as a multiple of the schedule's."""


class OwnOptimiser(Section):
    """An optimiser of one's own, which gets this table's other keys by name (docs/own-parts.md)."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["own"]
    """Which optimiser this is."""
    make: ImportPath
    """A `torch.optim.Optimizer`, or a function that makes one. It must treat every weight alike and by itself."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; never on biases and norms."""


Optimiser = Annotated[Adam | AdamW | Sgd | OwnOptimiser, Field(discriminator="kind")]


class Noam(Section):
    """Warm-up, then decay with the inverse square root of the step, scaled by the model's width."""

    kind: Literal["transformer"]
    """Which schedule this is."""
    scale: PositiveFloat = 1.0
    """Factor in front of the formula."""
    warmup_steps: PositiveInt = 4000
    """Steps of linear increase."""


class InverseSqrt(Section):
    """Linear warm-up to the peak, then decay with the inverse square root of the step."""

    kind: Literal["inverse_sqrt"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """The peak, reached at the end of the warm-up."""
    warmup_steps: PositiveInt = 4000
    """Steps of linear increase."""


class Cosine(Section):
    """Linear warm-up to the peak, then half a cosine down to the final rate at the last step."""

    kind: Literal["cosine"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """The peak."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear increase."""
    final_learning_rate: NonNegativeFloat = 0.0
    """The rate at the last step."""


class OneCycle(Section):
    """From a low rate up to the peak and down again to almost nothing, along cosines."""

    kind: Literal["one_cycle"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """The peak."""
    rise: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3
    """Share of the steps spent rising."""
    start_divisor: PositiveFloat = 25.0
    """The peak divided by this is the first rate."""
    final_divisor: PositiveFloat = 1e4
    """The first rate divided by this is the last rate."""


class Polynomial(Section):
    """Linear warm-up to the peak, then a polynomial down to the final rate at the last step."""

    kind: Literal["polynomial"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """The peak."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear increase."""
    final_learning_rate: NonNegativeFloat = 0.0
    """The rate at the last step."""
    power: PositiveFloat = 1.0
    """1 is a straight line."""


class Piecewise(Section):
    """Constant rates, changing at given steps."""

    kind: Literal["piecewise"]
    """Which schedule this is."""
    boundaries: list[PositiveInt]
    """Steps at which the rate changes, in increasing order."""
    learning_rates: list[PositiveFloat]
    """The rates, one more than there are boundaries."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear increase to the first rate."""


class Exponential(Section):
    """Multiplied by a factor at a fixed interval of steps."""

    kind: Literal["exponential"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """The rate after the warm-up."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)]
    """Factor applied every `decay_steps`."""
    decay_steps: PositiveInt = 1
    """Steps in which the rate falls by the factor `decay`."""
    staircase: bool = False
    """Fall in jumps rather than smoothly."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear increase."""


class Fixed(Section):
    """The same rate at every step."""

    kind: Literal["fixed"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """The rate."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear increase to it."""


class OwnSchedule(Section):
    """A schedule of one's own (docs/own-parts.md)."""

    kind: Literal["own"]
    """Which schedule this is."""
    learning_rate: PositiveFloat
    """What the factor is multiplied with."""
    rate: ImportPath
    """A function of the update's number, from 1, and of the number of updates, that returns a factor."""


Schedule = Annotated[
    Noam | InverseSqrt | Cosine | OneCycle | Polynomial | Piecewise | Exponential | Fixed | OwnSchedule,
    Field(discriminator="kind"),
]


class Evaluate(Evaluation):
    """When and how translations are scored."""

    sentences: PositiveInt | None = None
    """Score only this many validation sentences, the first ones, during training."""
    valid_beam: PositiveInt = 1
    """Beam for scoring during training; 1 is greedy, and quick."""
    beam: PositiveInt = 4
    """Beam for the final score, `evaluate` and `translate`."""
    length_penalty: NonNegativeFloat = 0.6
    """Exponent of the length penalty ((5 + length) / 6)**penalty; 0 is none."""
    split_above: PositiveInt | None = None
    """`translate`, and scoring in the same way, splits lines of more pieces than this, at sentences if it can;
    data.max_tokens if not given."""
    tokenisation: Tokenisation = "13a"
    """How sacreBLEU cuts the text into words before it counts; "none" is for text that is tokenised already, and its
    scores must not be compared with the others'."""
    samples: NonNegativeInt = 4
    """Validation sentences whose translations are kept over time."""


class CheckpointSettings(Section):
    """When the run's state is saved, and what is kept."""

    every: PositiveInt | Literal["auto"] = "auto"
    """Steps between two checkpoints; the last step is always saved. "auto" measures what a save costs here and takes
    the interval that loses least for `failure_hours` (Young and Daly's formula)."""
    failure_hours: PositiveFloat = 24.0
    """Expected hours between two failures of a host; more hosts fail more often."""
    keep: PositiveInt = 5
    """How many of the newest checkpoints are kept, beside the best."""
    best: Metric = "bleu"
    """Validation metric that decides which checkpoint is the best."""
    average: PositiveInt = 5
    """How many of the newest checkpoints `average` means."""
    mirror: str | None = None
    """An address, s3://bucket/folder or gs://bucket/folder, where checkpoints go as well, behind training; a run whose
    folder has none resumes from there."""

    @property
    def fixed_interval(self) -> int | None:
        """`every`, if the recipe gives it."""
        return None if self.every == "auto" else self.every


class ImageCheckpoint(CheckpointSettings):
    """When the state of a training on pictures is saved, and what is kept."""

    best: ImageMetric = "top1"  # type: ignore[assignment]
    """Validation metric that decides which checkpoint is the best."""


class EarlyStop(Section):
    """Stop when a validation metric no longer improves. With several, all of them must have stopped improving."""

    metric: Metric = "bleu"
    """The metric to look at."""
    patience: PositiveInt = 10
    """Scorings without improvement before training stops."""
    min_delta: NonNegativeFloat = 0.0
    """Smallest change that counts as an improvement."""


class ImageEarlyStop(EarlyStop):
    """Stop when a validation metric of pictures no longer improves. With several, all must have stopped improving."""

    metric: ImageMetric = "top1"  # type: ignore[assignment]
    """The metric to look at."""


class RestartSettings(Section):
    """What happens when a worker fails: it is started again, and gets the others' weights. If they could not keep them,
    all are started again, from the newest checkpoint."""

    max_restarts: NonNegativeInt = 3
    """Most restarts within the window before the run fails; 0 is none. A user's mistake, or training that cannot go
    on, is never tried again."""
    window_minutes: PositiveFloat = 60.0
    """Restarts longer ago than this no longer count."""
    hang_seconds: NonNegativeFloat = 300.0
    """A worker that gets nothing done for so long counts as failed; 0 waits for ever. Loading data, a slot of a step,
    a batch of scoring and writing a checkpoint must each take less."""
    silence_seconds: PositiveFloat = 5.0
    """On several hosts: a host that is not heard for this long is lost, and the others continue without it."""


class Track(Section):
    """Where curves go, beside the run's own records."""

    tensorboard: bool = True
    """Write TensorBoard event files into the run folder."""
    mlflow: str | None = None
    """Also log to this MLflow tracking store, a folder or an address; needs `pip install 'echelon-train[mlflow]'`."""
    wandb: Literal["offline", "online"] | None = None
    """Also log to Weights & Biases: into the run folder to be synchronised later, or to its servers at once; needs
    `pip install 'echelon-train[wandb]'`."""


class Recipe(Section):
    """What the recipes of all tasks have in common; each task's own has its own tables under these names."""

    version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)]
    """Version of the recipe format: 1."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Name of the run; its folder is runs/NAME unless `--run` says otherwise."""
    task: str
    """What is learnt."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Everything random follows from it."""
    data: Section
    """What it is learnt from."""
    model: Section
    """The network."""
    train: Train
    """The length of training and what a step is."""
    exchange: ExchangeSettings = ExchangeSettings()
    """Settings of the exchange."""
    optimiser: Optimiser
    """How gradients become updates."""
    schedule: Schedule
    """The learning rate over the steps."""
    evaluate: Evaluation
    """When and how it is scored."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When the run's state is saved, and what is kept."""
    early_stop: list[EarlyStop] = Field([])
    """When to stop before the end."""
    restart: RestartSettings = RestartSettings()
    """What happens when a worker fails."""
    track: Track = Track()
    """Where curves go, beside the run's own records."""


class TranslationRecipe(Recipe):
    """A recipe: everything that decides the result of a run."""

    task: Literal["translation"] = "translation"
    """What is learnt."""
    data: Data
    """The parallel text and how it is cut into pieces."""
    model: Model = Model()
    """The Transformer."""
    train: TranslationTrain
    """The length of training and what a step is."""
    optimiser: Optimiser = Adam()
    """How gradients become updates."""
    evaluate: Evaluate = Evaluate()
    """When and how translations are scored."""


class ClassificationRecipe(Recipe):
    """A recipe that learns to tell classes of pictures apart."""

    task: Literal["classification"]
    """What is learnt."""
    data: ImageData
    """The pictures."""
    model: ImageModel = ImageModel()
    """The network."""
    train: ImageTrain
    """The length of training and what a step is."""
    optimiser: Optimiser = Sgd(kind="sgd")
    """How gradients become updates."""
    evaluate: ImageEvaluation = ImageEvaluation()
    """When and how pictures are scored."""
    checkpoint: ImageCheckpoint = ImageCheckpoint()
    """When the run's state is saved, and what is kept."""
    early_stop: list[ImageEarlyStop] = Field([])  # type: ignore[assignment]
    """When to stop before the end."""
