"""Training steps on pictures against a plain PyTorch float32 loop with the same network and batches, in one run.

Contenders alternate and medians are compared; the ratios hold where absolute figures drift. Pictures are noise of
CIFAR-10's size, so nothing is fetched. Then the share of a step in which it waits for data, for both ways of cropping.
Usage:
    python bench/bench_images.py [--rounds 7] [--threads 2] [--preset resnet44] [--batch 128] [--clock cpu]
`--clock cpu` with one thread counts processor time, which holds better where other jobs run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from echelon.data.images.batches import crop_padded, mirror
from echelon.data.images.cifar10 import TEST_FILE, TRAIN_FILES
from echelon.data.images.image_store import PreparedImages
from echelon.data.images.prepare import prepare_images
from echelon.data.randomness import bit_generator, uniforms
from echelon.recipe.loading import check_recipe
from echelon.recipe.schema import ClassificationRecipe
from echelon.tasks.classification import ClassificationTask
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.statistics import SlotStatistics

CPU = torch.device("cpu")
Step = Callable[[int], None]
CROPS: dict[str, dict[str, Any]] = {"pad-crop": {"pad": 4}, "random-resized crop": {"min_area": 0.25}}


def recipe_of(preset: str, batch: int, crop: str = "pad-crop") -> ClassificationRecipe:
    table: dict[str, Any] = {
        "version": 1,
        "name": "bench",
        "task": "classification",
        "data": {
            "source": "cifar10",
            "path": "noise",
            "verify": False,
            "valid_images": 0,
            "augment": {"flip": "random", **CROPS[crop]},
        },
        "model": {"preset": preset},
        "train": {"steps": 1000, "batch_images": batch, "slots": 1},
        "optimiser": {"kind": "sgd", "nesterov": True, "weight_decay": 5e-4},
        "schedule": {"kind": "fixed", "learning_rate": 0.01},
        "evaluate": {"final": "last"},
    }
    recipe = check_recipe(table, where="bench")
    assert isinstance(recipe, ClassificationRecipe)
    return recipe


def write_noise(folder: Path) -> None:
    folder.mkdir()
    dice = np.random.default_rng(1)
    for name in (*TRAIN_FILES, TEST_FILE):
        records = dice.integers(0, 256, (1000, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())


def plain_step(task: ClassificationTask, prepared: PreparedImages, batch: int) -> Step:
    """What a tutorial would have one write: float32, pictures as torch lays them out, torch's own optimiser."""
    torch.manual_seed(1)
    model = task.build_model().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loss_of = nn.CrossEntropyLoss()

    def step(number: int) -> None:
        bits = bit_generator(number)
        indices = np.arange(number * batch, (number + 1) * batch) % len(prepared.train)
        pictures = crop_padded(prepared.train.gather(indices), 4, False, bits)
        pictures = mirror(pictures, uniforms(bits, batch) < 0.5)
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous().float().div_(255)
        labels = torch.from_numpy(prepared.train.labels[indices].astype(np.int64))
        optimiser.zero_grad()
        loss_of(model(images), labels).backward()
        optimiser.step()

    return step


def echelon_step(recipe: ClassificationRecipe, task: ClassificationTask) -> Step:
    torch.manual_seed(1)
    model = task.build_model().train()
    statistics_of_slots = SlotStatistics(model, 1)
    flat = FlatParameters(model, 1, statistics_of_slots.size)
    statistics_of_slots.attach(flat)
    optimiser = FlatOptimiser(recipe.optimiser, flat)

    def step(number: int) -> None:
        flat.zero()
        (slot,) = task.slots(number)
        batch = task.load(slot)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = task.loss(model, batch)
        statistics_of_slots.note(0)
        (loss.smoothed / slot.targets).backward()  # type: ignore[no-untyped-call]
        optimiser.step(0.01)
        statistics_of_slots.apply(number, range(1))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--preset", nargs="*", default=["resnet44", "speednet"])
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for preset in options.preset:
        with tempfile.TemporaryDirectory() as name:
            clock = time.process_time if options.clock == "cpu" else time.perf_counter
            compare(preset, options.batch, options.rounds, clock, Path(name))


def compare(preset: str, batch: int, rounds: int, clock: Callable[[], float], folder: Path) -> None:
    write_noise(folder / "noise")
    recipe = recipe_of(preset, batch)
    prepared = prepare_images(recipe.data, recipe_folder=folder, cache=folder / "cache")
    task = ClassificationTask(recipe, prepared, CPU)
    contenders = {
        "plain PyTorch, float32": plain_step(task, prepared, batch),
        "Echelon, bf16": echelon_step(recipe, task),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1, rounds + 2):
        for name, step in contenders.items():
            started = clock()
            step(number)
            if number > 1:  # the first round warms up
                rates[name].append(batch / (clock() - started))
    first = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{preset:<10}{name:<28}{median:>8,.0f} images/s{median / first:>8.2f} x")
    for crop in CROPS:
        share = data_share(recipe_of(preset, batch, crop), prepared, rounds, clock)
        print(f"{preset:<10}{'waits for data, ' + crop:<36}{share:>8.1%} of a step")


def data_share(
    recipe: ClassificationRecipe, prepared: PreparedImages, rounds: int, clock: Callable[[], float]
) -> float:
    """Share of a step's time that loading its pictures takes."""
    task = ClassificationTask(recipe, prepared, CPU)
    step, loads, steps = echelon_step(recipe, task), list[float](), list[float]()
    for number in range(1, rounds + 2):
        times = [clock()]
        step(number)
        times.append(clock())
        task.load(task.slots(number)[0])
        times.append(clock())
        if number > 1:  # the first round warms up
            steps.append(times[1] - times[0])
            loads.append(times[2] - times[1])
    return statistics.median(loads) / statistics.median(steps)


if __name__ == "__main__":
    main()
