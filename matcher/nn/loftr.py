"""The published LoFTR: attention over all cells, then a fine window round every match.

Parameters are named as in the published checkpoints. The network works on one pair at a time, on
lists of cells instead of maps, so that padding and masks need no code: a masked cell is left out of
the list, which linear attention, softmax and Sinkhorn cannot tell from a mask.

Pixels: coarse cell (column, row) lies on pixel (8 column, 8 row), and the fine stage moves only the
point of image 1.

Source: Sun et al., LoFTR: Detector-Free Local Feature Matching with Transformers, CVPR 2021; the
order of the steps as in the authors' implementation, which the checkpoints were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn.coarse_to_fine import Maps, View, cell_points
from matcher.nn.fine import expected_offset, windows
from matcher.nn.positions import sinusoidal
from matcher.nn.resnet_fpn import ResNetFPN, fold_batch_norms
from matcher.nn.streaming import BUDGET, CoarseMatches, Scores, Similarity, dual_softmax, sinkhorn

_WINDOWS_AT_ONCE = 256  # bounds the memory of the fine stage; larger gains no time


@dataclass(frozen=True)
class Config:
    """Sizes and switches; the defaults are the published outdoor model's.

    Attributes:
        dims: Channels at 1/2, 1/4 and 1/8 of the image's side.
        heads: Of the attention.
        layers: Coarse pairs of self- and cross-attention.
        fine_layers: The same of the fine stage.
        window: Fine cells along a side; odd.
        positions: Form of the coarse encoding; only `indoor_ds_new` was trained with "fixed".
        head: How coarse similarities become scores.
        temperature: Of the dual softmax.
        sinkhorn_steps: Of the optimal transport.
    """

    dims: tuple[int, int, int] = (128, 196, 256)  # channels at 1/2, 1/4, 1/8
    heads: int = 8
    layers: int = 4
    fine_layers: int = 1
    window: int = 5
    positions: Literal["released", "fixed"] = "released"
    head: Literal["dual-softmax", "sinkhorn"] = "dual-softmax"
    temperature: float = 0.1
    sinkhorn_steps: int = 3

    def __post_init__(self) -> None:
        for name, channels in (("coarse", self.dims[2]), ("fine", self.dims[0])):
            if channels % self.heads or channels % 4:
                raise ValueError(
                    f"{name} channels ({channels}) must be a multiple of "
                    f"heads ({self.heads}) and of 4"
                )
        if self.window % 2 == 0:
            raise ValueError(f"window must be odd, not {self.window}")


OUTDOOR = Config()
INDOOR_NEW = Config(positions="fixed")
OPTIMAL_TRANSPORT = Config(head="sinkhorn")


class EncoderLayer(nn.Module):
    """Linear attention from one list of cells to another, and a small network on what it found."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(channels, channels, bias=False)
        self.k_proj = nn.Linear(channels, channels, bias=False)
        self.v_proj = nn.Linear(channels, channels, bias=False)
        self.merge = nn.Linear(channels, channels, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(2 * channels, 2 * channels, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(2 * channels, channels, bias=False),
        )
        self.norm1 = nn.LayerNorm(channels)
        self.norm2 = nn.LayerNorm(channels)

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        """Update (B, N, C) tokens by what they find in the (B, M, C) source."""
        query, key, value = self.q_proj(tokens), self.k_proj(source), self.v_proj(source)
        message = self.norm1(self.merge(linear_attention(query, key, value, self.heads)))
        message = self.norm2(self.mlp(torch.cat([tokens, message], dim=-1)))
        updated: Tensor = tokens + message
        return updated


def linear_attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Attend with the feature map elu + 1 in time proportional to N + M.

    Args:
        query: (B, N, C).
        key: (B, M, C).
        value: (B, M, C).
        heads: Groups of neighbouring channels that attend on their own.

    Returns:
        (B, N, C) weighted means of the values.

    Source: Katharopoulos et al., Transformers are RNNs, ICML 2020, equation 7.
    """
    query, key = (torch.unflatten(F.elu(x) + 1, -1, (heads, -1)) for x in (query, key))
    value = (
        torch.unflatten(value, -1, (heads, -1)) / value.shape[1]
    )  # the mean keeps half precision in range
    summary = torch.einsum("bmhc,bmhd->bhcd", key, value)
    weight = torch.einsum("bnhc,bhc->bnh", query, key.mean(1)).clamp_min(1e-6)
    message = torch.einsum("bnhc,bhcd->bnhd", query, summary) / weight[..., None]
    return message.flatten(2)  # (B, N, C)


class Transformer(nn.Module):
    """Alternate self- and cross-attention; across, image 1 sees image 0 already updated."""

    def __init__(self, channels: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(channels, heads) for _ in range(2 * pairs))

    def forward(self, tokens0: Tensor, tokens1: Tensor) -> tuple[Tensor, Tensor]:
        """Update (B, N, C) and (B, M, C) tokens."""
        for number, layer in enumerate(self.layers):
            cross = number % 2 == 1
            tokens0 = layer(tokens0, tokens1 if cross else tokens0)
            tokens1 = layer(tokens1, tokens0 if cross else tokens1)
        return tokens0, tokens1


class CoarseHead(nn.Module):
    """Scores of all pairs of cells."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.head == "sinkhorn":
            self.bin_score = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens0: Tensor, tokens1: Tensor, budget: int = BUDGET) -> Scores:
        """Score (M, C) against (N, C) tokens within a budget of bytes."""
        channels = tokens0.shape[1]
        if self.config.head == "sinkhorn":
            similarity = Similarity(tokens0, tokens1, 1 / channels, budget)
            return sinkhorn(similarity, self.bin_score, self.config.sinkhorn_steps)
        return dual_softmax(
            Similarity(tokens0, tokens1, 1 / (channels * self.config.temperature), budget)
        )


class FineInput(nn.Module):
    """Fine windows that know their coarse match."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        fine, coarse = config.dims[0], config.dims[2]
        self.down_proj = nn.Linear(coarse, fine)
        self.merge_feat = nn.Linear(2 * fine, fine)

    def forward(self, gathered: Tensor, tokens: Tensor) -> Tensor:
        """Merge (K, side * side, C_fine) windows with the (K, C_coarse) tokens of their cells."""
        channels = gathered.shape[-1]
        weight = self.merge_feat.weight
        context = F.linear(self.down_proj(tokens), weight[:, channels:], self.merge_feat.bias)
        return F.linear(gathered, weight[:, :channels]) + context[:, None]


class LoFTR(nn.Module):
    """The whole published network, in the steps of the `Matcher` interface."""

    stride = ResNetFPN.coarse_stride
    centre = 0.0

    def __init__(self, config: Config = OUTDOOR) -> None:
        super().__init__()
        self.config = config
        self.channels = config.dims[2]
        self.backbone = ResNetFPN(config.dims)
        self.loftr_coarse = Transformer(config.dims[2], config.heads, config.layers)
        self.coarse_matching = CoarseHead(config)
        self.fine_preprocess = FineInput(config)
        self.loftr_fine = Transformer(config.dims[0], config.heads, config.fine_layers)

    def prepare(self) -> LoFTR:
        """Fold batch norms and order memory; for inference only from then on."""
        fold_batch_norms(self.backbone)
        self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self.eval().requires_grad_(False)

    def describe(self, image: Tensor) -> Maps:
        """Compute the maps of a (1, 1, H, W) grey image in [0, 1]: at 1/8 and at 1/2."""
        coarse, fine = self.backbone(image.contiguous(memory_format=torch.channels_last))
        height, width = coarse.shape[2:]
        positions = sinusoidal(
            height, width, coarse.shape[1], released=self.config.positions == "released"
        )
        coarse = (coarse[0] + positions.to(coarse)).permute(1, 2, 0)
        points = cell_points(height, width, self.stride, image.device)
        return Maps(coarse, points, fine=fine[0].permute(1, 2, 0))

    def describing_bytes(self, pixels: int) -> int:
        """Count the half-size maps that live at once in the last merge of the pyramid."""
        half, quarter, eighth = self.config.dims
        channels = half + 2 * quarter + quarter / 4 + eighth / 16
        return int(4 * channels * pixels / ResNetFPN.fine_stride**2)

    def held_bytes(self, pixels: int) -> int:
        """Count the fine and the coarse map."""
        half, _, eighth = self.config.dims
        return int(4 * pixels * (half / ResNetFPN.fine_stride**2 + eighth / self.stride**2))

    def relating_bytes(self, count0: int, count1: int) -> int:
        """Count the tokens and what one layer makes of them, and the windows of one part."""
        half, _, eighth = self.config.dims
        layer = 4 * eighth * (2 * (count0 + count1) + 6 * max(count0, count1))
        return layer + 4 * half * 10 * _WINDOWS_AT_ONCE * self.config.window**2

    def relate(self, view0: View, view1: View) -> tuple[Tensor, Tensor]:
        """Put every cell into the context of both images: (M, C) and (N, C)."""
        tokens0, tokens1 = self.loftr_coarse(view0.tokens[None], view1.tokens[None])
        return tokens0[0], tokens1[0]

    def score(self, tokens0: Tensor, tokens1: Tensor, budget: int = BUDGET) -> Scores:
        """Score all pairs of related tokens."""
        return cast(Scores, self.coarse_matching(tokens0, tokens1, budget))

    def place(
        self, views: tuple[View, View], related: tuple[Tensor, Tensor], found: CoarseMatches
    ) -> tuple[Tensor, Tensor]:
        """Give (K, 2) pixels of image 0, cell centres, and their sub-pixel places in image 1."""
        points0 = views[0].points[found.rows]
        return points0, self.follow(views, related, found, points0)

    def follow(
        self,
        views: tuple[View, View],
        related: tuple[Tensor, Tensor],
        found: CoarseMatches,
        points0: Tensor,
    ) -> Tensor:
        """Give the (K, 2) places in image 1 of points of image 0 that lie in matched cells.

        The window of image 0 is centred on the fine cell nearest to the point, that of image 1 as
        far off its coarse cell; what is left, below a fine cell, is taken over unchanged.
        """
        ratio, step = ResNetFPN.coarse_stride // ResNetFPN.fine_stride, ResNetFPN.fine_stride
        centres0 = (points0 / step).round().long()
        shift = centres0 - views[0].cells[found.rows] * ratio
        centres1 = views[1].cells[found.columns] * ratio + shift
        tokens = related[0][found.rows], related[1][found.columns]
        moved = self.fine_steps(views, (centres0, centres1), tokens)
        return centres1 * step + moved + (points0 - centres0 * step)

    def fine_steps(
        self,
        views: tuple[View, View],
        centres: tuple[Tensor, Tensor],
        tokens: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Find where the middle of each window of image 0 lies in the window of image 1.

        Args:
            views: Both images.
            centres: (K, 2) int64 (column, row) of the windows' middle cells in the fine maps.
            tokens: (K, C) related tokens of the coarse match that each window belongs to.

        Returns:
            (K, 2) float32 steps from the middle of the windows of image 1, in pixels.
        """
        parts = zip(*(torch.split(x, _WINDOWS_AT_ONCE) for x in (*centres, *tokens)), strict=True)
        steps = [self._fine_part(views, part) for part in parts]
        return torch.cat(steps) if steps else tokens[0].new_zeros((0, 2), dtype=torch.float32)

    def _fine_part(self, views: tuple[View, View], part: tuple[Tensor, ...]) -> Tensor:
        """Do the work of `fine_steps` for a few windows."""
        side = self.config.window
        fine0, fine1 = (
            self.fine_preprocess(windows(cast(Tensor, view.fine), centres, side), tokens)
            for view, centres, tokens in zip(views, part[:2], part[2:], strict=True)
        )
        fine0, fine1 = self.loftr_fine(fine0, fine1)
        middle = fine0[:, side * side // 2]  # (K, C)
        scores = torch.einsum("kc,knc->kn", middle, fine1) / middle.shape[1] ** 0.5
        return expected_offset(scores, side) * ResNetFPN.fine_stride


def published_state(state: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Give a published checkpoint (the authors' or kornia's) the names of `LoFTR`.

    The prefix `matcher.` of training wrappers is stripped, and the table of positions, which is
    computed, left out.

    Raises:
        ValueError: The file has a table of positions, and it is not that of the config: the
            weights would load, and match badly.
    """
    named = {name.removeprefix("matcher."): value for name, value in state.items()}
    table = named.pop("pos_encoding.pe", None)  # (1, C, H, W)
    if table is not None:
        _, channels, height, width = table.shape
        wanted = sinusoidal(height, width, channels, released=config.positions == "released")
        if not torch.allclose(table[0].float(), wanted, atol=1e-4):
            raise ValueError(
                f"these weights were trained with other positions than {config.positions!r}: "
                "official-indoor-new has 'fixed' ones, all other published weights 'released' ones"
            )
    return named
