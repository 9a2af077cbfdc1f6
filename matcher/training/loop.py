"""The one loop: draw, step, average, look, keep.

A run is a folder: `log.jsonl` (a line an interval), `checkpoint.pt` (whole or absent, the newest) and
in the end the weights. A run that was killed goes on from its checkpoint and draws what it would
have drawn.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from matcher import storage
from matcher.reading import refusing
from matcher.training.objectives import Objective
from matcher.training.samples import Samples
from matcher.training.settings import Settings
from matcher.training.validation import Figures

Check = Callable[[Objective], Figures]
Report = Callable[[dict[str, Any]], None]
_INTERVAL = 20.0  # seconds between two lines of the log


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: Steps done.
        seconds: Spent in them, over all starts of the run.
        skipped: Steps whose loss or gradient was not finite; they change nothing.
    """

    step: int = 0
    seconds: float = 0.0
    skipped: int = 0

    def share(self, settings: Settings) -> float:
        """Tell how much of the run is over, by time or by steps: 0 to 1."""
        by_steps = self.step / settings.steps if settings.steps else 0.0
        return min(1.0, max(by_steps, self.seconds / (60 * settings.minutes)))


@dataclass
class Run:
    """A training run.

    Attributes:
        objective: With the network, on its device; afterwards it holds the averaged weights.
        samples: What it learns from.
        folder: Where the run is kept.
        check: Looks at the validation pairs.
        report: Takes every line of the log; does nothing by default.
    """

    objective: Objective
    samples: Samples
    folder: Path
    check: Check
    report: Report = field(default=lambda _: None)

    def __post_init__(self) -> None:
        self.settings = self.samples.settings
        self.progress = Progress()
        self.learned = {
            name: value for name, value in self.objective.named_parameters() if value.requires_grad
        }
        self.averages = {name: value.detach().clone() for name, value in self.learned.items()}
        self.optimiser = torch.optim.AdamW(self._groups(), weight_decay=0.0)
        device = self.samples.photographs.device
        self.random = torch.Generator(device).manual_seed(self.settings.seed + 1000 * _rank())

    def _groups(self) -> list[dict[str, Any]]:
        """Give the CNN its own learning rate."""
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for name, value in self.learned.items():
            parts["backbone." in name].append(value)
        rates = self.settings.rate, self.settings.rate * self.settings.backbone_rate
        return [
            {"params": part, "lr": rate, "highest": rate}
            for part, rate in zip(parts, rates, strict=True)
            if part
        ]

    def go(self) -> Progress:
        """Train until the budget is spent, and leave the averaged weights in the network.

        Returns:
            What was done.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._restore()
        module = _distributed(self.objective)
        self.objective.train()
        for losses, gradients in self._intervals(module):
            self._log(loss=sum(losses) / max(1, len(losses)), gradient=max(gradients, default=0.0))
        self._save()
        for name, value in self.learned.items():
            value.data.copy_(self.averages[name])
        self.objective.eval()
        return self.progress

    def _intervals(self, module: nn.Module) -> Iterator[tuple[list[float], list[float]]]:
        """Step, look and save when it is time; yield the losses and gradients of each interval."""
        losses: list[float] = []
        gradients: list[float] = []
        now = time.monotonic()
        saved = looked = told = self.progress.seconds
        while self.progress.share(self.settings) < 1:
            loss, gradient = self._step(module)
            if math.isfinite(loss):
                losses.append(loss)
                gradients.append(gradient)
            before, now = now, time.monotonic()
            self.progress.seconds += now - before
            if self.progress.seconds - told > _INTERVAL:
                yield losses, gradients
                losses, gradients, told = [], [], self.progress.seconds
            if self.progress.seconds - looked > 60 * self.settings.check_minutes:
                self._look()
                now, looked = time.monotonic(), self.progress.seconds  # looking is not training
            if self.progress.seconds - saved > 60 * self.settings.save_minutes:
                self._save()
                saved = self.progress.seconds
        yield losses, gradients

    def _step(self, module: nn.Module) -> tuple[float, float]:
        """Take one step; one whose loss or gradient is not finite changes nothing."""
        rate = schedule(self.progress.share(self.settings), self.settings.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = group["highest"] * rate
        views = self.samples.draw(self.random)
        self.optimiser.zero_grad(set_to_none=True)
        loss = module(views)
        loss.backward()
        values = [value for value in self.learned.values() if value.grad is not None]
        length = nn.utils.clip_grad_norm_(values, self.settings.largest_gradient)
        self.progress.step += 1
        if not (bool(length.isfinite()) and bool(loss.isfinite())):
            self.progress.skipped += 1
            return math.nan, math.nan
        self.optimiser.step()
        self._average()
        return float(loss.detach()), float(length)

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averages towards the weights, faster at first."""
        step = self.progress.step
        keep = min(self.settings.average, (1 + step) / (10 + step))
        averages, learned = list(self.averages.values()), list(self.learned.values())
        torch._foreach_lerp_(averages, [value.detach() for value in learned], 1 - keep)

    def _look(self) -> None:
        """Measure the averaged weights on the validation pairs."""
        if _rank():
            return
        now = {name: value.detach().clone() for name, value in self.learned.items()}
        self._fill(self.averages)
        figures = self.check(self.objective)
        self._fill(now)
        self._log(validation=asdict(figures))

    def _fill(self, values: dict[str, Tensor]) -> None:
        for name, value in self.learned.items():
            value.data.copy_(values[name])

    def _log(self, **figures: Any) -> None:
        """Write a line."""
        if _rank():
            return
        pairs = self.progress.step * self.settings.batch * _processes()
        line = {
            "step": self.progress.step,
            "minutes": round(self.progress.seconds / 60, 2),
            "share": round(self.progress.share(self.settings), 4),
            "pairs_per_second": round(pairs / max(1e-9, self.progress.seconds), 2),
            "skipped": self.progress.skipped,
            **figures,
        }
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.report(line)

    def _save(self) -> None:
        """Keep all that the rest of the run depends on."""
        if _rank():
            return
        kept = {
            "progress": asdict(self.progress),
            "learned": {name: value.detach() for name, value in self.learned.items()},
            "averages": self.averages,
            "optimiser": self.optimiser.state_dict(),
            "random": self.random.get_state(),
            "settings": json.dumps(asdict(self.settings)),
        }
        file = io.BytesIO()
        torch.save(kept, file)
        storage.write(self.folder / "checkpoint.pt", file.getvalue())

    def _restore(self) -> None:
        """Go on where the newest checkpoint was made, if there is one.

        Raises:
            ValueError: It is damaged, or belongs to a run with other settings.
        """
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return
        with refusing(path, "whole checkpoint"):
            kept = torch.load(path, map_location="cpu", weights_only=True)
            settings = json.loads(kept["settings"])
        if _but_for_time(settings) != _but_for_time(json.loads(json.dumps(asdict(self.settings)))):
            raise ValueError(f"{path} belongs to a run with other settings: choose another folder")
        self.progress = Progress(**kept["progress"])
        self._fill(kept["learned"])
        for name, value in kept["averages"].items():
            self.averages[name].copy_(value)
        self.optimiser.load_state_dict(kept["optimiser"])
        self.random.set_state(kept["random"])


def schedule(share: float, warmup: float) -> float:
    """Give the share of the highest rate: up in a line, then down along a cosine to a hundredth.

    Args:
        share: Of the run that is over.
        warmup: Share of the run that the rise takes.
    """
    if share < warmup:
        return max(share / warmup, 0.01)
    part = (share - warmup) / (1 - warmup)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * part)) / 2


def _but_for_time(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out what may change between two starts of a run."""
    free = ("minutes", "steps", "save_minutes", "check_minutes")
    return {name: value for name, value in settings.items() if name not in free}


def _rank() -> int:
    """Tell which of the processes of `torchrun` this is."""
    return int(os.environ.get("RANK", "0"))


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _distributed(objective: Objective) -> nn.Module:
    """Let processes that `torchrun` started take the mean of their gradients."""
    if _processes() == 1:
        return objective
    device = next(objective.parameters()).device
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return DistributedDataParallel(objective, find_unused_parameters=True)
