"""Draw batches of training pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from matcher.synthesis import homographies, light, scenes
from matcher.synthesis.photographs import Photographs
from matcher.synthesis.views import TwoViews
from matcher.training.settings import Settings


class RealPairs(Protocol):
    """Pairs of photographs with measured places, such as those of `matcher mine`."""

    def __len__(self) -> int:
        """Count them."""
        ...

    def draw(self, count: int, size: tuple[int, int], random: torch.Generator) -> TwoViews:
        """Cut out (count) pairs of views of one height and width; `complete` is False."""
        ...


@dataclass(frozen=True, eq=False)
class Samples:
    """Where pairs come from.

    Attributes:
        photographs: Synthetic pairs are made out of them.
        settings: Shares, sizes and strengths.
        real: Pairs of a collection; None without.
    """

    photographs: Photographs
    settings: Settings
    real: RealPairs | None = None

    def __post_init__(self) -> None:
        if self.settings.mix.real and not self.real:
            raise ValueError(
                f"{self.settings.mix.real:.0%} of the pairs shall be real, and no collection is given"
            )

    def draw(self, random: torch.Generator) -> TwoViews:
        """Draw a batch: every pair draws its kind."""
        settings, mix = self.settings, self.settings.mix
        size = settings.sizes[_whole(len(settings.sizes), random)]
        dice = torch.rand(settings.batch, generator=random, device=random.device).tolist()
        in_space = sum(chance < mix.scenes for chance in dice)
        real = sum(mix.scenes <= chance < mix.scenes + mix.real for chance in dice)
        plane = settings.batch - in_space - real
        parts: list[TwoViews] = []
        if plane:
            parts.append(
                homographies.draw(self.photographs, plane, size, random, settings.homographies)[0]
            )
        if in_space:
            parts.append(scenes.draw(self.photographs, in_space, size, random, settings.scenes)[0])
        if real and self.real:
            parts.append(self.real.draw(real, size, random))
        views = self._some_unrelated(TwoViews.joined(parts), random)
        if _whole(2, random):
            views = views.swapped()
        return views.shown(
            light.change(views.image0, random, settings.light),
            light.change(views.image1, random, settings.light),
        )

    def _some_unrelated(self, views: TwoViews, random: torch.Generator) -> TwoViews:
        """Exchange the images of some pairs for others', which show something else."""
        chance = torch.rand(len(views), generator=random, device=random.device)
        struck = (chance < self.settings.mix.unrelated) & views.complete & views.complete.roll(1, 0)
        if len(views) == 1 or not bool(struck.any()):
            return views
        other = views.unrelated()
        return TwoViews.joined([views.of(~struck), other.of(struck)])


def with_seed(samples: Samples, seed: int) -> tuple[Samples, torch.Generator]:
    """Give the samples of another seed, with a generator at its start, on the photographs' device."""
    random = torch.Generator(samples.photographs.device).manual_seed(seed)
    return replace(samples, settings=replace(samples.settings, seed=seed)), random


def _whole(below: int, random: torch.Generator) -> int:
    """Draw a whole number from 0 to below."""
    return int(torch.randint(below, (), generator=random, device=random.device))
