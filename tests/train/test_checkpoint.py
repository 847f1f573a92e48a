from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoints import write_checkpoint
from torch import Tensor

from echelon.errors import CheckpointError, UserError
from echelon.files.checkpoint_layout import Best, TrainingState, clear_for_saving
from echelon.train.checkpoint import (
    average_weights,
    choose_checkpoint,
    list_checkpoints,
    newest_good_checkpoint,
    prune_checkpoints,
    scheduled,
)

MODEL = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}
OPTIMISER = {"step": torch.tensor(3.0), "exp_avg/weight": torch.zeros(2, 3)}


def _save(
    checkpoints: Path, step: int, model: dict[str, Tensor] = MODEL, best: Best | None = None, workers: int = 1
) -> None:
    state = TrainingState(step=step, best=best, waits={"bleu": {"best": 1.5, "scorings": 2}}, skipped_steps=4)
    write_checkpoint(checkpoints, state, model, OPTIMISER, workers)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    _save(tmp_path, 7, best=Best(7, "bleu", 12.5))
    (checkpoint,) = list_checkpoints(tmp_path)
    checkpoint.verify()
    assert checkpoint.step == 7
    assert all(torch.equal(tensor, MODEL[name]) for name, tensor in checkpoint.load_model().items())
    assert checkpoint.load_optimiser().keys() == OPTIMISER.keys()
    assert checkpoint.load_state() == TrainingState(
        step=7, best=Best(7, "bleu", 12.5), waits={"bleu": {"best": 1.5, "scorings": 2}}, skipped_steps=4
    )


def test_weights_are_plain_safetensors_that_any_tool_reads(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    loaded = safetensors.torch.load_file(tmp_path / "step-00000001" / "model.safetensors")
    assert torch.equal(loaded["weight"], MODEL["weight"])


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser-0-of-1.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing file", "missing sidecar", "truncated", "empty sidecar"])
def test_a_checkpoint_that_lacks_anything_is_not_listed(tmp_path: Path, name: str, damage: str) -> None:
    _save(tmp_path, 1)
    file = tmp_path / "step-00000001" / name
    sidecar = file.with_name(f"{name}.checksum.json")
    match damage:
        case "missing file":
            file.unlink()
        case "missing sidecar":
            sidecar.unlink()
        case "truncated":
            file.write_bytes(file.read_bytes()[:-1])
        case "empty sidecar":
            sidecar.write_text("")
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser-0-of-1.safetensors", "state.json"])
def test_a_flipped_bit_is_named_kept_aside_and_the_older_checkpoint_used(tmp_path: Path, name: str) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    file = tmp_path / "step-00000002" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(file.parent)):
        choose_checkpoint(tmp_path, file.parent)
    found, messages = newest_good_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    (message,) = messages
    assert str(file.parent) in message
    assert "kept aside as damaged-step-00000002-1" in message
    assert (tmp_path / "damaged-step-00000002-1" / name).read_bytes() == content
    assert [c.step for c in list_checkpoints(tmp_path)] == [1]


@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_a_truncated_or_deleted_file_is_named_and_kept_aside(tmp_path: Path, damage: str) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    file = tmp_path / "step-00000002" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8]) if damage == "truncated" else file.unlink()
    found, messages = newest_good_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    assert len(messages) == 1
    assert (tmp_path / "damaged-step-00000002-1").exists()


def test_the_optimisers_state_is_put_together_from_all_workers_files(tmp_path: Path) -> None:
    _save(tmp_path, 1, workers=3)
    (checkpoint,) = list_checkpoints(tmp_path)
    assert len(list(checkpoint.folder.glob("optimiser-*-of-3.safetensors"))) == 3
    loaded = checkpoint.load_optimiser()
    assert loaded.keys() == OPTIMISER.keys()
    assert all(torch.equal(loaded[name], OPTIMISER[name]) for name in OPTIMISER)


def test_a_checkpoint_lacking_one_workers_file_is_not_whole(tmp_path: Path) -> None:
    _save(tmp_path, 1, workers=2)
    (tmp_path / "step-00000001" / "optimiser-1-of-2.safetensors.checksum.json").unlink()
    assert list_checkpoints(tmp_path) == []
    assert newest_good_checkpoint(tmp_path) == (None, []), "cut short, not damaged"


def test_saving_a_step_again_counts_for_nothing_until_it_is_whole(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    clear_for_saving(tmp_path / "step-00000001")
    assert list_checkpoints(tmp_path) == [], "the mixture of two saves must never be taken for a checkpoint"


def test_file_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    state = tmp_path / "step-00000001" / "state.json"
    values = json.loads(state.read_text())
    for name in ("../model.safetensors", "/etc/passwd", "sub/model.safetensors", 7):
        state.write_text(json.dumps({**values, "files": ["model.safetensors", name]}))
        assert list_checkpoints(tmp_path) == []


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        _save(tmp_path, step)
    prune_checkpoints(tmp_path, keep=2, best=Best(20, "bleu", 1.0))
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [20, 40, 50]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000020",
        "step-00000040",
        "step-00000050",
    ]


def test_best_last_and_a_path_are_found(tmp_path: Path) -> None:
    _save(tmp_path, 10)
    _save(tmp_path, 20, best=Best(10, "bleu", 3.0))
    assert choose_checkpoint(tmp_path, "last").step == 20
    assert choose_checkpoint(tmp_path, "best").step == 10
    assert choose_checkpoint(tmp_path, tmp_path / "step-00000010").step == 10


def test_asking_for_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint yet"):
        choose_checkpoint(tmp_path, "last")
    _save(tmp_path, 10)
    with pytest.raises(CheckpointError, match="nothing was scored yet"):
        choose_checkpoint(tmp_path, "best")
    with pytest.raises(UserError, match=r"elsewhere: is not a complete checkpoint; use .*: step-00000010$"):
        choose_checkpoint(tmp_path, tmp_path / "elsewhere")


def test_the_average_is_the_mean_of_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 4) for _ in range(3)]
    for step, weight in enumerate(weights, start=1):
        _save(tmp_path, step, {"weight": weight})
    average = average_weights(list_checkpoints(tmp_path))
    torch.testing.assert_close(average["weight"], torch.stack(weights).mean(0))
    assert average["weight"].dtype == torch.float32


def test_a_state_of_another_format_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    (checkpoint,) = list_checkpoints(tmp_path)
    state = json.loads((checkpoint.folder / "state.json").read_text())
    (checkpoint.folder / "state.json").write_text(json.dumps({**state, "format": 99}))
    with pytest.raises(CheckpointError, match="another version"):
        checkpoint.load_state()


def _to_format_2(folder: Path) -> None:
    """Rewrite a checkpoint as Echelon once wrote it: SHA-256 in sidecars called NAME.sha256.json."""
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": 2}))
    for sidecar in folder.glob("*.checksum.json"):
        name = sidecar.name.removesuffix(".checksum.json")
        content = (folder / name).read_bytes()
        seal = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        sidecar.unlink()
        (folder / f"{name}.sha256.json").write_text(json.dumps(seal))


def test_a_checkpoint_of_format_2_is_verified_and_read(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    for step in (1, 2):
        _to_format_2(tmp_path / f"step-0000000{step}")
    found, messages = newest_good_checkpoint(tmp_path)
    assert (found and found.step, messages) == (2, [])
    file = tmp_path / "step-00000002" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found, messages = newest_good_checkpoint(tmp_path)
    assert found is not None
    assert found.load_state().step == 1
    assert found.load_model().keys() == MODEL.keys()
    assert f"{file} cannot be used" in messages[0]


def test_a_save_over_one_of_format_2_is_never_mixed_with_it(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _to_format_2(tmp_path / "step-00000001")
    clear_for_saving(tmp_path / "step-00000001")
    assert list_checkpoints(tmp_path) == []


def test_what_killed_saves_and_prunings_left_is_cleared_away(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    _save(tmp_path, 2)
    cut_short = tmp_path / "step-00000003" / ".model.safetensors.77.tmp"
    cut_short.parent.mkdir()
    cut_short.touch()
    clear_for_saving(cut_short.parent)
    assert not cut_short.exists()
    for clear in (
        lambda: prune_checkpoints(tmp_path, keep=5, best=None),
        lambda: newest_good_checkpoint(tmp_path),
    ):
        half_removed = tmp_path / ".step-00000001.77.removed"
        half_removed.mkdir()
        (half_removed / "model.safetensors").touch()
        clear()
        assert not half_removed.exists()
    assert [c.step for c in list_checkpoints(tmp_path)] == [1, 2]


def test_checkpoints_that_an_interruption_added_do_not_push_others_out(tmp_path: Path) -> None:
    for step in (10, 20, 30, 37, 40):
        _save(tmp_path, step)
    found = list_checkpoints(tmp_path)
    assert [c.step for c in scheduled(found, 10)] == [10, 20, 30, 40]
    assert [c.step for c in scheduled(found[:4], 10)] == [10, 20, 30, 37], "the last one counts"
    prune_checkpoints(tmp_path, keep=3, best=None, every=10)
    assert [c.step for c in list_checkpoints(tmp_path)] == [20, 30, 40]


def test_a_best_checkpoint_that_is_gone_is_not_silently_replaced(tmp_path: Path) -> None:
    _save(tmp_path, 10)
    _save(tmp_path, 20, best=Best(15, "bleu", 3.0))
    with pytest.raises(CheckpointError, match="of step 15, is not whole; use last"):
        choose_checkpoint(tmp_path, "best")


def test_pruning_clears_saves_that_were_cut_short(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        _save(tmp_path, step)
    for step in (20, 30):
        (tmp_path / f"step-000000{step}" / "state.json.checksum.json").unlink()
    _save(tmp_path, 25)
    prune_checkpoints(tmp_path, keep=5, best=None)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000010", "step-00000025", "step-00000030"], "30 may be a save under way"


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-1-my-copy")
    prune_checkpoints(tmp_path, keep=1, best=None)
    assert (tmp_path / "step-1-my-copy").exists()
