"""`python -m echelon.cifar10_main`: the script of TensorFlow's CIFAR-10 tutorial."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from echelon.data.images.cifar10 import ARCHIVE_FILE, find_cifar10
from echelon.errors import UserError
from echelon.migrate.old_command import Flags, Modern, given_arguments, settings_arguments
from echelon.recipe.shipped import find_recipe
from echelon.store import is_address

_UNUSED = {
    "num_intra_threads": "is left out: OMP_NUM_THREADS says it",
    "num_inter_threads": "is left out: OMP_NUM_THREADS says it",
    "data_format": "is left out: the layout is chosen by the machine",
    "log_device_placement": "has no equivalent",
    "eval_batch_size": "is left out: it makes no difference to the score",
    "batch_norm_epsilon": "is left out: it is 1e-5",
}
_NOT_THERE = (
    f"has neither CIFAR-10's .bin files nor {ARCHIVE_FILE}, and TFRecords are not read: the data are fetched, unless "
    "they are in the cache already"
)
_NOT_THE_TUTORIALS = (
    "training is in bf16, which is faster, and starts with an epoch of warm-up, unlike the tutorial's; to train as "
    "it did, add --set train.precision=float32 --set schedule.warmup_steps=0"
)
_LAYERS = (20, 32, 44, 56, 110)
_TRAINING_PICTURES = 45_000
_BOUNDARY_EPOCHS = (82, 123, 300)


def translate(arguments: list[str]) -> Modern:
    """The command that does what the tutorial's script would have done."""
    given = _flags().parse_args(arguments)
    notes = [
        f"--{name.replace('_', '-')} {why}"
        for name, why in _UNUSED.items()
        if getattr(given, name) is not None
    ]
    _check(given)
    workers = max(given.num_gpus, 1)
    settings = {
        **_training_settings(given, workers),
        **_data_settings(given, notes),
        **_server_settings(given),
    }
    workers += 1 if _has_server(given) else 0
    run = given.job_dir
    if is_address(run):
        address = run.rstrip("/")
        run = f"runs/{address.rpartition('/')[2]}"
        settings["checkpoint.mirror"] = address
        notes.append(f"--job-dir {given.job_dir}: the run is in {run} here; its checkpoints go there as well")
    words = ["train", str(find_recipe("cifar10-resnet44")), "--run", run, "--workers", str(workers)]
    notes.append(_NOT_THE_TUTORIALS)
    on_cpu = {"CUDA_VISIBLE_DEVICES": ""} if given.num_gpus == 0 else {}
    return Modern(
        [*words, *settings_arguments(settings), *given_arguments(given.settings)], notes, environ=on_cpu
    )


def _flags() -> Flags:
    """The tutorial's flags, with their defaults."""
    flags = Flags(
        "python -m echelon.cifar10_main", description="TensorFlow's CIFAR-10 tutorial, done with Echelon."
    )
    flags.add_argument(
        "--data-dir", help="a folder with CIFAR-10's .bin files or archive; fetched if it has none"
    )
    flags.add_argument("--job-dir", required=True, help="the run's folder, or an address, gs://...")
    flags.add_argument("--num-gpus", type=int, default=1, help="workers; 0 is one on the CPU")
    flags.add_argument("--num-layers", type=int, default=44, choices=_LAYERS)
    flags.add_argument("--train-steps", type=int, default=80_000)
    flags.add_argument("--train-batch-size", type=int, default=128)
    flags.add_argument("--checkpoint-num-steps", type=int, default=1000)
    flags.add_argument("--momentum", type=float, default=0.9)
    flags.add_argument("--weight-decay", type=float, default=2e-4)
    flags.add_argument("--learning-rate", type=float, default=0.1)
    flags.add_argument("--batch-norm-decay", type=float, default=0.997)
    flags.add_argument("--use-distortion-for-training", choices=("True", "False"), default="True")
    flags.add_argument("--variable-strategy", choices=("CPU", "GPU"), help="CPU: on a parameter server")
    flags.add_argument("--sync", nargs="?", const="True", choices=("True", "False"))
    for name in _UNUSED:
        flags.add_argument(f"--{name.replace('_', '-')}", nargs="?", const="True")
    return flags


def _training_settings(given: Namespace, workers: int) -> dict[str, object]:
    epoch_steps = _TRAINING_PICTURES // given.train_batch_size
    settings: dict[str, object] = {
        "model.preset": f"resnet{given.num_layers}",
        "train.epochs": "",
        "train.steps": given.train_steps,
        "train.batch_images": given.train_batch_size,
        "train.slots": 2 if workers == 1 and given.train_batch_size % 2 == 0 else workers,
        "checkpoint.every": given.checkpoint_num_steps,
        "optimiser.momentum": given.momentum,
        "optimiser.weight_decay": given.weight_decay,
        "model.norm_momentum": round(1.0 - given.batch_norm_decay, 9),
        "schedule.boundaries": [epochs * epoch_steps for epochs in _BOUNDARY_EPOCHS],
        "schedule.warmup_steps": epoch_steps,
    }
    if given.learning_rate != 0.1:
        rates = [given.learning_rate * factor for factor in (1.0, 0.1, 0.01, 0.002)]
        settings["schedule.learning_rates"] = f"[{', '.join(f'{rate:g}' for rate in rates)}]"
    return settings


def _data_settings(given: Namespace, notes: list[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    if given.use_distortion_for_training == "False":
        settings |= {"data.augment.pad": 0, "data.augment.flip": "no"}
    if given.data_dir is None:
        return settings
    data = find_cifar10(Path(given.data_dir))
    if data is None:
        notes.append(f"--data-dir {given.data_dir} {_NOT_THERE}")
        return settings
    return settings | {"data.path": data.absolute()}  # a relative one would begin at the recipe


def _has_server(given: Namespace) -> bool:
    return bool(given.variable_strategy == "CPU" or given.sync == "False")


def _server_settings(given: Namespace) -> dict[str, object]:
    if not _has_server(given):
        return {}
    return {
        "train.exchange": "parameter_server",
        "exchange.synchronous": "false" if given.sync == "False" else "true",
    }


def _check(given: Namespace) -> None:
    if given.num_gpus < 0:
        raise UserError("--num-gpus must be 0, which is the CPU, or more")
    if given.learning_rate <= 0:
        raise UserError("--learning-rate must be above 0")
    if not 0 < given.train_batch_size <= _TRAINING_PICTURES:
        raise UserError(f"--train-batch-size must be from 1 to {_TRAINING_PICTURES:,}")
