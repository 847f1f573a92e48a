"""Several workers of one group, each a process, for tests of exchanges."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from echelon.comm.group import Group
from echelon.recipe import schema
from echelon.train.exchange import Exchange
from echelon.train.flat import FlatParameters
from echelon.train.gradient_norm import block_norms, total_norm
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Update

SLOTS = 4
Work = Callable[[Group], dict[str, Tensor]]


def run_workers(work: Work, size: int, folder: Path) -> list[dict[str, Tensor]]:
    """What `work` returns in each of `size` processes, in rank order."""
    folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.set_forkserver_preload(
        ["echelon.train.exchange"]
    )  # torch is imported once for all of them
    with mock.patch.object(tempfile, "tempdir", "/tmp"):  # the path of its socket must be short
        forkserver.ensure_running()
    mp.start_processes(_run, (work, size, folder), nprocs=size, start_method="forkserver")  # type: ignore[attr-defined, no-untyped-call]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


def _run(rank: int, work: Work, size: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.save(work(Group(rank, size, store=store)), folder / f"{rank}.pt")
    dist.destroy_process_group()


class Pupil:
    """A small network that learns a fixed function by plain gradient descent, slot by slot."""

    def __init__(
        self,
        group: Group,
        exchange: Exchange,
        width: int = 96,
        first: str = "0",
        *,
        optimiser: schema.Optimiser | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """`first` is the name of its first layer."""
        torch.manual_seed(1)
        layers = {first: nn.Linear(32, width), "1": nn.Tanh(), "2": nn.Linear(width, 48)}
        self.model = nn.Sequential(OrderedDict(layers))
        self.group, self.exchange = group, exchange
        self.flat = FlatParameters(self.model, SLOTS)
        self.optimiser = FlatOptimiser(optimiser or schema.Sgd(kind="sgd", momentum=0.5), self.flat)
        self._clip_norm = clip_norm
        self.norms: list[float] = []
        exchange.attach(self.flat, self.optimiser, lambda: None)
        self.losses: list[float] = []

    def train(self, steps: range, rate: float = 0.05) -> None:
        for step in steps:
            for update in self.exchange.updates(step, SLOTS):
                self._backward(step, update)
                while (reduced := self.exchange.reduce()).must_repeat:
                    self._backward(step, update)
                if self._clip_norm is not None:
                    self._clip(self._clip_norm, reduced.whole_norm)
                if update.is_applied_here and rate:
                    self.optimiser.step(rate)
                self.exchange.after_update()
            self.losses.append(self.flat.loss)

    def _clip(self, longest: float, whole_norm: float | None) -> None:
        spans, gradients = self.optimiser.spans, self.flat.gradients
        norm = total_norm(block_norms(gradients, spans)) if whole_norm is None else whole_norm
        self.norms.append(norm)
        for span in spans:
            gradients[span].mul_(min(1.0, longest / norm))

    def _backward(self, step: int, update: Update) -> None:
        self.flat.zero()
        for slot in update.mine:
            with self.exchange.slot(last=slot == update.mine[-1]):
                loss = self._loss(step, slot) / len(update.slots)
                self.flat.losses[slot] = loss.detach()
                loss.backward()  # type: ignore[no-untyped-call]

    def _loss(self, step: int, slot: int) -> Tensor:
        dice = torch.Generator().manual_seed(1000 * step + slot)
        x = torch.randn(16, 32, generator=dice)
        squares: Tensor = (self.model(x) - torch.sin(x.repeat(1, 2)[:, :48])) ** 2
        return squares.sum() / 16

    def result(self) -> dict[str, Tensor]:
        """What a test compares, the optimiser's state included."""
        state = self.exchange.state()
        own = {f"own/{name}": tensor.clone() for name, tensor in state.own.items()}
        shared = {f"shared/{name}": tensor.clone() for name, tensor in state.shared.items()}
        return {
            "weights": self.flat.weights.clone(),
            "losses": torch.tensor(self.losses),
            "reduced": self.flat.reduced.clone(),
            **{f"optimiser/{name}": tensor.clone() for name, tensor in self.optimiser.state().items()},
            **own,
            **shared,
        }

    def go_on_from(self, folder: Path) -> None:
        """Take over what other workers' `result`s were."""
        results = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))]
        self.flat.weights.copy_(results[0]["weights"])
        self.optimiser.load_state(_below("optimiser/", results[0]))
        own = {name: tensor for result in results for name, tensor in _below("own/", result).items()}
        self.exchange.load_state(own | _below("shared/", results[0]))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
