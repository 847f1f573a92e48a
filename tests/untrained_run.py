"""A run folder with a small model that has learnt nothing: all of a run's files, in a fraction of a second."""

from __future__ import annotations

import json
import random
from pathlib import Path

import safetensors.torch
import torch

from echelon.data.tokeniser import Tokeniser, count_words_of, train_tokeniser
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from echelon.tasks.translation import build_transformer
from echelon.train.checkpoint import (
    MODEL,
    STATE,
    Best,
    TrainingState,
    checkpoint_folder,
    write_sidecar,
    write_state,
)
from echelon.train.checksum import ALGORITHM, checksum_of_file
from echelon.train.tensorfile import Written
from tests.conftest import WORDS
from tests.sample_recipe import sample_recipe


def sentences(count: int, seed: int = 1) -> list[str]:
    """Lines in the toy language."""
    dice = random.Random(seed)
    return [" ".join(dice.choices(sorted(WORDS), k=dice.randint(2, 9))) for _ in range(count)]


def make_untrained_run(path: Path, *overrides: str) -> RunFolder:
    """The run; its translations are nonsense, and always the same nonsense."""
    small = ("model.d_model=32", "model.d_ff=48", "model.encoder_layers=2", "model.decoder_layers=2")
    recipe = sample_recipe(*small, "model.heads=4", "data.max_tokens=24", "evaluate.beam=3", *overrides)
    run = RunFolder(path)
    run.create()
    run.recipe.write_text(dump_recipe(recipe))
    words = count_words_of([*sentences(200), *(" ".join(WORDS.values()) for _ in range(20))])
    run.tokeniser.write_bytes(train_tokeniser(words, 120))
    torch.manual_seed(3)
    model = build_transformer(recipe, Tokeniser.load(run.tokeniser).size)
    with torch.no_grad():
        model.embeddings.output_VD.mul_(3)  # a model with opinions
        model.embeddings.output_VD[1] *= 0.5
    folder = checkpoint_folder(run.checkpoints, 5)
    folder.mkdir()
    safetensors.torch.save_file(dict(model.state_dict()), folder / MODEL)
    size = (folder / MODEL).stat().st_size
    write_sidecar(folder, MODEL, Written(checksum_of_file(folder / MODEL, ALGORITHM), size))
    write_sidecar(
        folder, STATE, write_state(folder, TrainingState(step=5, best=Best(5, "bleu", 1.0)), [MODEL])
    )
    records = [{"kind": "sample", "step": 5, "source": line} for line in sentences(30)]
    run.worker_records(0).write_text("".join(json.dumps(record) + "\n" for record in records))
    scores = {
        "bleu": 1.5,
        "chrf": 9.25,
        "loss": 4.0,
        "perplexity": 54.6,
        "signature": "nrefs:1|v:2",
        "checkpoint": "x",
    }
    write_json(run.score_file("test"), {**scores, "step": 5, "split": "test"})
    return run
