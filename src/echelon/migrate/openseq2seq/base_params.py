"""What Text2Text and Image2Label configurations have in common: length, batch, optimiser, rate, precision, saves."""

from __future__ import annotations

import math
from typing import Any

from echelon.migrate.openseq2seq.settings import Settings
from echelon.migrate.openseq2seq.syntax import Named

RUN_REASONS = {
    "use_horovod": "is not needed: workers always agree on the weights; --workers and --hosts say where they are",
    "logdir": "is not part of a recipe; give it as --run",
    "base_logdir": "is not part of a recipe; give it as --run",
    "save_summaries_steps": "is left out: curves have a point every train.log_every steps",
    "print_samples_steps": "is left out: samples are shown at every evaluation",
    "print_bench_info_steps": "is left out: `echelon benchmark` measures",
    "bench_start": "is left out: `echelon benchmark` measures after its own warm-up",
    "summaries": "is left out: TensorBoard gets loss, rate, gradient norm, speed and scores",
    "initializer": "is left out: models start as their papers say",
    "initializer_params": "is left out: models start as their papers say",
    "larc_params": "has no equivalent: rates do not adapt layer by layer",
    "loss_scaling": "is left out: with fp16 the loss scale always adapts by itself",
    "loss_scaling_params": "is left out: with fp16 the loss scale always adapts by itself",
    "hooks": "has no equivalent",
    "restore_best_checkpoint": "is left out: `evaluate` and `translate` take --checkpoint best",
    "load_model": "has no equivalent: TensorFlow's checkpoints cannot be read",
    "load_fc": "has no equivalent: TensorFlow's checkpoints cannot be read",
    "use_trt": "has no equivalent; see `echelon export`",
    "use_xla_jit": "has no equivalent",
    "automatic_mixed_precision": "is left out: dtype says it",
}
RUN_SILENT = {"num_gpus", "loss", "data_layer", "encoder", "decoder"}
OPTIMISERS = {
    "Adam": "adam",
    "AdamOptimizer": "adam",
    "LazyAdamOptimizer": "adam",
    "AdamW": "adamw",
    "AdamWOptimizer": "adamw",
    "Momentum": "sgd",
    "MomentumOptimizer": "sgd",
    "SGD": "sgd",
    "GradientDescentOptimizer": "sgd",
}
ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
"""TensorFlow's defaults, which are not a recipe's."""


class Draft:
    """A recipe in the making, and what the user must know about it."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self.notes: list[str] = []

    def put(self, section: str, **values: Any) -> None:
        """Add keys to a section, those that are None left out."""
        given = {key: value for key, value in values.items() if value is not None}
        self.table.setdefault(section, {}).update(given)


def convert_run(settings: Settings, draft: Draft, workers: int | None) -> int:
    """Length, precision, saving and clipping; the number of slots, one for each worker and accumulated batch."""
    gpus = workers or _gpus(settings, draft)
    slots = gpus * settings.count("iter_size", 1)
    seed = settings.number("random_seed")
    if seed is not None:
        draft.table["seed"] = int(seed)
    steps, epochs = settings.number("max_steps"), settings.number("num_epochs")
    draft.put("train", steps=steps, epochs=None if epochs is None else float(epochs))
    draft.put("train", slots=slots, workers=gpus, precision=_precision(settings, draft))
    draft.put(
        "train", log_every=settings.number("print_loss_steps"), clip_norm=_float(settings, "max_grad_norm")
    )
    draft.put("evaluate", every=settings.number("eval_steps"))
    save = settings.number("save_checkpoint_steps")
    if isinstance(steps, int) and isinstance(save, int) and save > steps // 4:
        draft.notes.append(
            settings.note(
                "save_checkpoint_steps",
                f'is {save}, too rare for {steps} steps: checkpoint.every = "auto" takes its place, as saves cost '
                "next to nothing",
            )
        )
        save = None
    draft.put("checkpoint", every=save, keep=settings.number("num_checkpoints"))
    if settings.get("use_horovod") and workers is None:
        draft.notes.append(
            settings.note(
                "use_horovod",
                f"makes the batch grow with the number of processes; this recipe is for {gpus}: give --workers N to "
                "convert for N",
            )
        )
    return slots


def _gpus(settings: Settings, draft: Draft) -> int:
    listed = settings.numbers("gpu_ids")
    if listed:
        draft.notes.append(settings.note("gpu_ids", "are only counted: CUDA_VISIBLE_DEVICES says which"))
    return settings.count("num_gpus", len(listed) or 1)


def _float(settings: Settings, key: str) -> float | None:
    value = settings.number(key)
    return None if value is None else float(value)


def _precision(settings: Settings, draft: Draft) -> str:
    dtype = settings.get("dtype", "float32")
    match dtype.name if isinstance(dtype, Named) else dtype:
        case "float32":
            return "float32"
        case "float16" | "mixed":
            if isinstance(settings.get("loss_scaling"), int | float):
                draft.notes.append(
                    settings.note("loss_scaling", "is left out: the loss scale adapts by itself")
                )
            return "fp16"
    raise settings.error("dtype", f"is {dtype}; use tf.float32 or mixed")


def convert_optimiser(settings: Settings, draft: Draft) -> None:
    """The optimiser, and L2 regularisation as its weight decay."""
    name = settings.name("optimizer")
    parameters = settings.inner("optimizer_params")
    kind = OPTIMISERS.get(name)
    if kind is None:
        rate = settings.inner("lr_policy_params").number("learning_rate")
        raise settings.error(
            "optimizer",
            f"is {name or 'missing'}, which has no equivalent, and its rate ({rate}) would not suit another; choose "
            "one of Adam, AdamW, Momentum and SGD, and a rate for it in lr_policy_params",
        )
    draft.table["optimiser"] = {"kind": kind}
    if kind == "sgd":
        momentum = parameters.number("momentum", 0.0)
        draft.put("optimiser", momentum=float(momentum), nesterov=parameters.get("use_nesterov"))
    else:
        draft.put("optimiser", **{key: float(parameters.number(key, usual)) for key, usual in ADAM.items()})
    decay = parameters.number("weight_decay", 0.0 if kind == "adamw" else None)
    regularizer = settings.name("regularizer")
    scale = settings.inner("regularizer_params").number("scale")
    if regularizer == "l2_regularizer" and scale is not None:
        decay = scale
    elif regularizer:
        draft.notes.append(settings.note("regularizer", f"{regularizer} has no equivalent, and is left out"))
    draft.put("optimiser", weight_decay=None if decay is None else float(decay))
    draft.notes += parameters.left_over({}, silent={"use_locking"})


def convert_schedule(settings: Settings, draft: Draft, steps_per_epoch: int | None) -> None:
    """The learning rate's policy."""
    policy = settings.name("lr_policy") or "fixed_lr"
    parameters = settings.inner("lr_policy_params")
    rate = _float(parameters, "learning_rate")
    warmup = parameters.number("warmup_steps")
    schedule: dict[str, Any]
    match policy:
        case "transformer_policy":
            schedule = _transformer(parameters, draft, rate)
        case "fixed_lr":
            schedule = {"kind": "fixed", "learning_rate": rate}
        case "poly_decay":
            schedule = {
                "kind": "polynomial",
                "learning_rate": rate,
                "power": float(parameters.number("power", 1.0)),
                "final_learning_rate": float(parameters.number("min_lr", 0.0)),
            }
        case "cosine_decay":
            schedule = {
                "kind": "cosine",
                "learning_rate": rate,
                "final_learning_rate": float(parameters.number("min_lr", 0.0)),
            }
        case "exp_decay":
            schedule = {
                "kind": "exponential",
                "learning_rate": rate,
                "decay": _required(parameters, "decay_rate"),
                "decay_steps": _decay_steps(settings, parameters, steps_per_epoch),
                "staircase": bool(parameters.get("use_staircase_decay", False)),
            }
        case "piecewise_constant":
            schedule = _piecewise(settings, parameters, rate, steps_per_epoch)
        case _:
            raise settings.error(
                "lr_policy", f"{policy} has no equivalent; see docs/recipe.md for the schedules"
            )
    if warmup is not None:
        schedule["warmup_steps"] = int(warmup)
    draft.table["schedule"] = schedule
    draft.notes += parameters.left_over(
        {
            "max_lr": "has no equivalent: the schedule has no ceiling of its own",
            "begin_decay_at": "has no equivalent: decay begins after the warm-up",
            "decay_steps": "is left out: the decay ends with the training",
            "min_lr": "has no equivalent in this schedule",
        },
        silent={"dtype"},
    )


def _transformer(parameters: Settings, draft: Draft, rate: float | None) -> dict[str, Any]:
    """The formula's width was a setting of its own there; here it is the model's, so the scale makes up for it."""
    scale = (rate or 1.0) * float(parameters.number("coefficient", 1.0))
    width = draft.table["model"].get("d_model", 1)
    given = parameters.count("d_model", width)
    if given != width:
        scale *= math.sqrt(width / given)
        draft.notes.append(
            parameters.note(
                "d_model",
                f"is {given}, where this schedule takes the model's width, {width}: schedule.scale = {scale:g} gives "
                "the same rates",
            )
        )
    return {"kind": "transformer", "scale": scale}


def _required(settings: Settings, key: str) -> float:
    value = settings.number(key)
    if value is None:
        raise settings.error(key, "is missing")
    return float(value)


def _decay_steps(settings: Settings, parameters: Settings, steps_per_epoch: int | None) -> int:
    """The steps given, or else those of the whole training, as in OpenSeq2Seq."""
    steps, epochs = settings.number("max_steps"), settings.number("num_epochs")
    if steps is None and epochs is not None and steps_per_epoch is not None:
        steps = round(epochs * steps_per_epoch)
    if parameters.number("decay_steps", steps) is None:
        raise parameters.error(
            "decay_steps", "is missing, and the training's length is not known in steps; give one of the two"
        )
    return parameters.count("decay_steps", steps)


def _piecewise(
    settings: Settings, parameters: Settings, rate: float | None, steps_per_epoch: int | None
) -> dict[str, Any]:
    """Boundaries are epochs if the training's length is, and steps otherwise."""
    boundaries = parameters.numbers("boundaries")
    rates = [rate, *((rate or 0.0) * decay for decay in parameters.numbers("decay_rates"))]
    if settings.number("num_epochs") is not None:
        if steps_per_epoch is None:
            raise settings.error(
                "num_epochs", "needs boundaries in steps here; give max_steps and them in steps"
            )
        boundaries = [round(epoch * steps_per_epoch) for epoch in boundaries]
    return {"kind": "piecewise", "boundaries": boundaries, "learning_rates": rates}
