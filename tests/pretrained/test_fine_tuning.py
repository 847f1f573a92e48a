"""Fine-tuning what was converted goes as the same fine-tuning by transformers goes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import echelon
from echelon.models.sequences import Sequences
from echelon.monitor.records import read_records
from echelon.pretrained.conversion import as_run
from echelon.recipe.loading import change_recipe, load_translation_recipe
from echelon.recipe.schema import Data, TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.translation import TranslationTask
from echelon.train.weights import choose_weights
from tests.data.test_paired_pieces import SOURCE, TARGET
from tests.pretrained.marian_folders import ORDER, make_marian

STEPS, RATE = 50, 1e-3


def write_corpus(folder: Path, name: str, lines: int) -> None:
    """Sentences of the vocabulary's words, and as many words in the other language."""
    dice = random.Random(name)
    words = {side: " ".join(text).split() for side, text in (("en", SOURCE), ("de", TARGET))}
    lengths = [dice.randint(1, 7) for _ in range(lines)]
    for side, known in words.items():
        text = "".join(" ".join(dice.choices(known, k=length)) + "\n" for length in lengths)
        (folder / f"{name}.{side}").write_text(text)


def recipe_for(folder: Path, place: Path, *overrides: str) -> TranslationRecipe:
    """Of the model in the folder, on the corpora in `place`."""
    corpora = {
        name: {side: str(place / f"{name}.{end}") for side, end in (("source", "en"), ("target", "de"))}
        for name in ("train", "valid")
    }
    recipe = load_translation_recipe(RunFolder(as_run(folder)).recipe)
    data = Data.model_validate({"train": [corpora["train"]], "valid": corpora["valid"], "max_tokens": 48})
    changed = change_recipe(
        recipe.model_copy(update={"data": data}),
        [
            f"train.init_from={folder}",
            f"train.steps={STEPS}",
            "train.batch_tokens=256",
            "train.slots=2",
            "train.label_smoothing=0.0",
            f"schedule.learning_rate={RATE}",
            "schedule.warmup_steps=0",
            "evaluate.every=1000",
            "evaluate.beam=1",
            "track.tensorboard=false",
            *overrides,
        ],
    )
    assert isinstance(changed, TranslationRecipe)
    return changed


def padded(sequences: Sequences, filler: int) -> torch.Tensor:
    """[B, L] in their ids."""
    theirs = torch.tensor([ORDER.index(token) for token in sequences.tokens.tolist()])
    rows = torch.split(theirs, list(sequences.lengths))
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=filler)


def their_losses(model: Any, task: TranslationTask) -> list[float]:
    """The mean loss of every step, of the same pairs."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in range(1, STEPS + 1):
        slots = task.slots(step)
        targets = sum(slot.targets for slot in slots)
        optimiser.zero_grad()
        total = 0.0
        for slot in slots:
            batch = task.load(slot)
            source, labels = padded(batch.source, -1), padded(batch.target, -100)
            mask = source >= 0
            logits = model(
                input_ids=source.where(mask, torch.tensor(model.config.pad_token_id)),
                attention_mask=mask.long(),
                labels=labels,
            ).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / targets
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        optimiser.step()
        losses.append(total)
    return losses


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path, "train", 200)
    write_corpus(tmp_path, "valid", 4)
    return tmp_path


def test_fifty_steps_follow_those_of_transformers(corpora: Path) -> None:
    theirs = make_marian(corpora / "theirs", activation_function="swish")
    recipe = recipe_for(corpora / "theirs", corpora)

    run = RunFolder(echelon.train(recipe, run=corpora / "run", show=False).path)

    ours = [record["loss"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"]
    trained = load_translation_recipe(run.recipe)
    expected = their_losses(theirs.train(), TranslationTask.of_run(trained, run, torch.device("cpu")))
    assert len(ours) == STEPS
    assert expected[-1] < 0.8 * expected[0]
    assert ours == pytest.approx(expected, rel=0.01)
    bias = choose_weights(run, "last").tensors["output_bias"]
    assert torch.equal(bias[ORDER], theirs.final_logits_bias[0])
