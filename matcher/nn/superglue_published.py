"""The layers of SuperGlue as published, and the names of its files.

Source: Sarlin, DeTone, Malisiewicz, Rabinovich, "SuperGlue: Learning Feature Matching with Graph
Neural Networks", CVPR 2020; written from the paper and the layout of the files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from matcher.nn.attention import attend
from matcher.nn.perceptron import perceptron
from matcher.nn.pointsets import PointSet, Side, State
from matcher.nn.positions import KeypointEncoder, normalise_points


class Published(nn.Module):
    """The paper's layers: self- and cross-attention in turn, positions added to the descriptors."""

    def __init__(self, channels: int, heads: int, layers: int, encoder: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = KeypointEncoder(channels, encoder)
        self.layers = nn.ModuleList(Propagation(channels, heads) for _ in range(2 * layers))
        self.final_proj = nn.Linear(channels, channels)

    def begin(self, image0: PointSet, image1: PointSet) -> State:
        """Make the first tokens: descriptor plus encoding of position and score."""
        side0, side1 = (
            replace(Side.begin(image), tokens=self._encode(image)) for image in (image0, image1)
        )
        return State.begin(side0, side1)

    def step(self, state: State, depth: int) -> State:
        """Look at the own image, then at the other as it was before."""
        look_within, look_across = self.layers[2 * depth - 2], self.layers[2 * depth - 1]
        (tokens0, mask0), (tokens1, mask1) = ((side.tokens, side.mask) for side in state.sides)
        tokens0 = tokens0 + look_within(tokens0, tokens0, mask0)
        tokens1 = tokens1 + look_within(tokens1, tokens1, mask1)
        change0 = look_across(tokens0, tokens1, mask1)
        change1 = look_across(tokens1, tokens0, mask0)
        return state.updated(tokens0 + change0, tokens1 + change1)

    def settled(self, state: State, depth: int) -> None:  # noqa: ARG002 -- as Modern.settled
        """Let every pair take all layers."""
        return

    def pruned(self, state: State, depth: int) -> State:  # noqa: ARG002 -- as Modern.pruned
        """Keep every point."""
        return state

    def scores(self, state: State, depth: int) -> Tensor:  # noqa: ARG002 -- as Modern.scores
        """Compare all tokens: (B, M, N) float32."""
        projected0, projected1 = (self.final_proj(side.tokens) for side in state.sides)
        similarity: Tensor = projected0 @ projected1.mT
        return similarity.float() / math.sqrt(projected0.shape[-1])

    def _encode(self, image: PointSet) -> Tensor:
        """Add the encoding of (x, y, score) to the descriptors: (B, N, C)."""
        points = normalise_points(image.points, image.sizes, 0.7)  # of the long side: the paper's
        encoded: Tensor = self.encoder(points, image.scores.float())
        return image.descriptors + encoded


class Propagation(nn.Module):
    """One attention from an image's tokens to a source's, and the change that the message makes."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.merge = nn.Linear(channels, channels)
        self.mlp = perceptron(2 * channels, 2 * channels, channels)

    def forward(self, tokens: Tensor, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the change of (B, M, C) tokens from the source's (B, N, C), masked by (B, N)."""
        projected = (self.query(tokens), *self.key_value(source).chunk(2, dim=-1))
        query, key, value = (
            torch.unflatten(each, -1, (self.heads, -1)).transpose(1, 2) for each in projected
        )  # (B, heads, N, C/heads)
        message = attend(query, key, value, mask).transpose(1, 2).flatten(2)  # (B, M, C)
        change: Tensor = self.mlp(torch.cat([tokens, self.merge(message)], dim=-1))
        return change


_RENAMED = {
    "bin_score": "dustbin",
    "kenc.encoder.": "context.encoder.layers.",
    "gnn.layers.": "context.layers.",
    "final_proj.": "context.final_proj.",
    ".attn.merge.": ".merge.",
    ".attn.proj.0.": ".query.",
    ".attn.proj.1.": ".key.",
    ".attn.proj.2.": ".value.",
}


def published_names(state: Mapping[str, Tensor], channels: int, heads: int) -> dict[str, Tensor]:
    """Rename, drop the kernel axis of the products, put heads before their channels."""
    by_head = torch.arange(channels).reshape(-1, heads).T.flatten()
    named: dict[str, Tensor] = {}
    for published, value in state.items():
        name = published
        for old, new in _RENAMED.items():
            name = name.replace(old, new)
        tensor = value.flatten(1) if value.ndim == 3 else value  # (outputs, inputs, 1)
        if any(part in name for part in (".query.", ".key.", ".value.")):
            tensor = tensor[by_head]
        named[name] = tensor[:, by_head] if name.endswith(".merge.weight") else tensor
    for key in [name for name in named if ".key." in name]:
        partner = key.replace(".key.", ".value.")
        if partner in named:  # else the strict load names what is missing
            both = torch.cat([named.pop(key), named.pop(partner)])
            named[key.replace(".key.", ".key_value.")] = both
    return named
