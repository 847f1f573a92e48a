"""One worker of the reference: torch's DistributedDataParallel on the batches of a run. Usage: RUN OUTPUT"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn

from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.workers import share_of
from echelon.runfolder import RunFolder
from echelon.tasks.translation import TranslationTask
from echelon.tasks.translation_loss import TranslationBatch


class WithLoss(nn.Module):
    """DDP wants a module whose forward is the loss."""

    def __init__(self, task: TranslationTask, model: nn.Module) -> None:
        super().__init__()
        self.task = task
        self.model = model

    def forward(self, batch: TranslationBatch) -> torch.Tensor:
        return self.task.loss(self.model, batch).smoothed


def main(run: RunFolder, output: Path) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    recipe = load_translation_recipe(run.recipe)
    task = TranslationTask.of_run(recipe, run, torch.device("cpu"))
    torch.manual_seed(recipe.seed)
    model = task.build_model()
    initial = {name: float(tensor.double().sum()) for name, tensor in model.state_dict().items()}
    ddp = nn.parallel.DistributedDataParallel(WithLoss(task, model))
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    assert recipe.train.steps is not None
    rate = rate_by_step(recipe, recipe.train.steps)
    for step in range(1, recipe.train.steps + 1):
        slots = task.slots(step)
        targets = sum(slot.targets for slot in slots)
        mine = share_of(len(slots), rank, size)
        optimiser.zero_grad()
        for number in mine:
            loss = ddp(task.load(slots[number])) * (size / targets)  # DDP divides by the number of workers
            if number == mine[-1]:
                loss.backward()
            else:
                with ddp.no_sync():
                    loss.backward()
        optimiser.param_groups[0]["lr"] = rate(step)
        optimiser.step()
    if rank == 0:
        safetensors.torch.save_file(model.state_dict(), output)
        output.with_suffix(".json").write_text(json.dumps(initial))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])), Path(sys.argv[2]))
