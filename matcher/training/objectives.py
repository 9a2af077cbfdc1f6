"""What the networks are trained for: a likely assignment of the true partners, and of having none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn.assignment import dual_softmax
from matcher.nn.loftr_light import LoftrLight
from matcher.nn.pointsets import PointSet, nothing_assigned, put_back
from matcher.nn.positions import normalise_points
from matcher.nn.superglue import SuperGlue
from matcher.nn.transformer import AssignmentHead
from matcher.nn.xfeat import XFeat
from matcher.synthesis.views import TwoViews
from matcher.training import tokens
from matcher.training.labels import Labels, label
from matcher.training.settings import Settings


@dataclass(frozen=True, eq=False)
class Judged:
    """What a network thinks of a batch, in natural logarithms, float32.

    Attributes:
        matches: (B, M, N) probability that two tokens are partners.
        alone0: (B, M) probability that a token of image 0 has none.
        alone1: (B, N).
    """

    matches: Tensor
    alone0: Tensor
    alone1: Tensor


class Trainable(Protocol):
    """How a network sees a batch of pairs."""

    def tokens(self, images: Tensor) -> PointSet:
        """Describe (B, 1, H, W) images."""
        ...

    def judge(self, image0: PointSet, image1: PointSet) -> Judged:
        """Relate and assign their tokens."""
        ...


class Keypoints(nn.Module):
    """`superglue`: XFeat's keypoints, which stay as they are, and the whole network behind them."""

    def __init__(self, network: SuperGlue, front_end: XFeat, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.front_end = front_end.eval().requires_grad_(False)
        self.settings = settings

    @torch.no_grad()
    def tokens(self, images: Tensor) -> PointSet:
        """Find keypoints."""
        return tokens.keypoints(self.front_end, images, self.settings.tokens)

    def judge(self, image0: PointSet, image1: PointSet) -> Judged:
        """Run every layer, and the transport."""
        network = self.network
        with _precision(self.settings, image0.points.device):
            state = network.context.begin(image0.cleaned(), image1.cleaned())
            for depth in range(1, network.config.layers + 1):
                state = network.context.step(state, depth)
        state = state.updated(*(side.tokens.float() for side in state.sides))
        transport = network.transport(state, network.config.layers)
        logs = put_back(nothing_assigned(image0, image1), transport, state)
        return Judged(logs[:, :-1, :-1], logs[:, :-1, -1], logs[:, -1, :-1])


class Cells(nn.Module):
    """`loftr`, light: cells of the CNN's map, related."""

    def __init__(self, network: LoftrLight, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
        network.backbone.eval().requires_grad_(settings.backbone_rate > 0)
        network.backbone.fine_matcher.requires_grad_(False)

    def train(self, mode: bool = True) -> Cells:
        """Switch the mode of all but the CNN: its batch statistics stay those it came with."""
        super().train(mode)
        self.network.backbone.eval()
        return self

    def tokens(self, images: Tensor) -> PointSet:
        """Choose cells."""
        with nullcontext() if self.settings.backbone_rate > 0 else torch.no_grad():
            return tokens.cells(self.network.backbone, images, self.settings.tokens)

    def judge(self, image0: PointSet, image1: PointSet) -> Judged:
        """Run every layer, and dual softmax with matchability."""
        context = self.network.context
        points = [normalise_points(image.points, image.sizes, 0.5) for image in (image0, image1)]
        masks = image0.mask, image1.mask
        descriptors = image0.cleaned().descriptors, image1.cleaned().descriptors
        with _precision(self.settings, points[0].device):
            related = context(descriptors, (points[0], points[1]), masks)
        tokens0, tokens1 = (part.float() for part in related)
        head = cast(AssignmentHead, context.log_assignment[-1])
        odds0, odds1 = head.matchable(tokens0), head.matchable(tokens1)
        similarity = head.similarity(tokens0, tokens1)
        both = F.logsigmoid(odds0)[:, :, None] + F.logsigmoid(odds1)[:, None]
        return Judged(
            dual_softmax(similarity, *masks) + both, F.logsigmoid(-odds0), F.logsigmoid(-odds1)
        )


class Objective(nn.Module):
    """The loss of a batch of pairs."""

    def __init__(self, trainable: Keypoints | Cells, settings: Settings) -> None:
        super().__init__()
        self.trainable = trainable
        self.settings = settings

    def forward(self, views: TwoViews) -> Tensor:
        """Compute the () loss; 0, with a gradient of 0, where nothing is known of any token."""
        judged, labels, _ = self.look(views)
        return surprise(judged, labels)

    def look(self, views: TwoViews) -> tuple[Judged, Labels, tuple[PointSet, PointSet]]:
        """Give what the network thinks, what is true, and the tokens."""
        image0 = self.trainable.tokens(views.image0)
        image1 = self.trainable.tokens(views.image1)
        judged = self.trainable.judge(image0, image1)
        labels = label(views, image0, image1, self.settings.near, self.settings.far)
        return judged, labels, (image0, image1)


def surprise(judged: Judged, labels: Labels) -> Tensor:
    """Average the negative log-likelihood of what is true, in nats.

    True partners count as much as all tokens without partner, these half in either image, however
    many there are of each.

    Source: Lindenberger et al., LightGlue, ICCV 2023, equation 10.
    """
    found = judged.matches[labels.item, labels.index0, labels.index1]
    alone = _mean(judged.alone0[labels.alone0]) + _mean(judged.alone1[labels.alone1])
    return -(_mean(found) + alone / 2)


def _mean(values: Tensor) -> Tensor:
    """Average, bounded below so that no log of an underflow is infinite; 0 of nothing."""
    return values.clamp_min(-50.0).sum() / max(1, values.numel())


def _precision(settings: Settings, device: torch.device) -> AbstractContextManager[object]:
    """Compute the layers' products in half the bits if the settings say so; scores never."""
    if settings.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
