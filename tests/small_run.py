"""A run folder with a small model: all of a run's files, made within the test, in seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from echelon.data.tokeniser import BOS, EOS, Tokeniser, count_words_of, train_tokeniser
from echelon.files.checkpoint_layout import (
    MODEL,
    STATE,
    Best,
    TrainingState,
    checkpoint_folder,
    write_sidecar,
    write_state,
)
from echelon.files.checksum import ALGORITHM, Written, checksum_of_file
from echelon.models.loss import summed_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Transformer
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from echelon.tasks.translation import build_transformer
from tests.conftest import WORDS
from tests.sample_recipe import sample_recipe


def sentences(count: int, seed: int = 1) -> list[str]:
    """Lines in the toy language."""
    dice = random.Random(seed)
    return [" ".join(dice.choices(sorted(WORDS), k=dice.randint(2, 9))) for _ in range(count)]


def make_small_run(path: Path, *overrides: str, steps: int = 0) -> RunFolder:
    """The run after so many steps: none know nothing, and 150 the words of the toy language."""
    small = ("model.d_model=32", "model.d_ff=48", "model.encoder_layers=1", "model.decoder_layers=2")
    recipe = sample_recipe(
        *small,
        "model.heads=4",
        "model.dropout=0.0",
        "train.precision=float32",
        "data.max_tokens=24",
        "evaluate.beam=3",
        *overrides,
    )
    run = RunFolder(path)
    run.create()
    run.recipe.write_text(dump_recipe(recipe))
    words = count_words_of([*sentences(200), *(" ".join(WORDS.values()) for _ in range(20))])
    run.tokeniser.write_bytes(train_tokeniser(words, 120))
    torch.manual_seed(3)
    tokeniser = Tokeniser.load(run.tokeniser)
    model = build_transformer(recipe, tokeniser.size)
    teach(model, tokeniser, steps)
    keep_model(run, model, Best(5, "bleu", 1.0))
    records = [{"kind": "sample", "step": 5, "source": line} for line in sentences(30)]
    run.worker_records(0).write_text("".join(json.dumps(record) + "\n" for record in records))
    scores = {
        "bleu": 1.5,
        "chrf": 9.25,
        "loss": 4.0,
        "perplexity": 54.6,
        "signature": "nrefs:1|v:2",
        "checkpoint": "step-00000005",
    }
    write_json(run.score_file("test"), {**scores, "step": 5, "split": "test"})
    return run


def keep_model(run: RunFolder, model: nn.Module, best: Best) -> None:
    """The model as the run's checkpoint of step 5."""
    folder = checkpoint_folder(run.checkpoints, 5)
    folder.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(tensors, folder / MODEL)
    size = (folder / MODEL).stat().st_size
    write_sidecar(folder, MODEL, Written(checksum_of_file(folder / MODEL, ALGORITHM), size))
    write_sidecar(folder, STATE, write_state(folder, TrainingState(step=5, best=best), [MODEL]))


def teach(model: Transformer, tokeniser: Tokeniser, steps: int) -> None:
    """Teach it the toy language, word by word."""
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 5e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        sources = sentences(32, seed=1000 + step)
        targets = [" ".join(WORDS[word] for word in line.split()) for line in sources]
        source, target = (
            Sequences.of([[*ids, EOS] for ids in tokeniser.encode(side)]) for side in (sources, targets)
        )
        loss = summed_loss(
            model(source, shift_right(target, BOS)), model.embeddings.output_VD, target.tokens, 0.0
        )
        optimiser.zero_grad()
        (loss.smoothed / len(target.tokens)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
