"""Self- and cross-attention between the tokens of two images, as published with LightGlue.

Parameters keep the published names, so that LightGlue's and LighterGlue's files load strictly:
`input_proj`, `posenc.Wr`, `transformers.i.{self_attn,cross_attn}`, `log_assignment.i`,
`token_confidence.i`.

Source: Lindenberger, Sarlin, Pollefeys, "LightGlue: Local Feature Matching at Light Speed", ICCV
2023; written from the paper and the layout of its files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn.attention import attend
from matcher.nn.positions import RotaryEncoding, Rotation, rotate

MOST_LAYERS, MOST_CHANNELS = 64, 4096  # a damaged recipe must not fill the memory


def check_size(name: str, value: object, most: int) -> None:
    """Refuse a size that no network of this package has.

    Raises:
        ValueError: It is no whole number, below 1, or above the most.
    """
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} must be at least 1 and at most {most}, not {value}")


@dataclass(frozen=True)
class Config:
    """Sizes of the layers; the defaults are LightGlue's, `LIGHTER` has LighterGlue's."""

    input_channels: int = 256
    channels: int = 256
    heads: int = 4
    layers: int = 9

    def __post_init__(self) -> None:
        check_size("layers", self.layers, MOST_LAYERS)
        for name in ("channels", "input_channels", "heads"):
            check_size(name, getattr(self, name), MOST_CHANNELS)
        if self.channels % (2 * self.heads):
            raise ValueError(
                f"channels ({self.channels}) must be an even multiple of heads ({self.heads})"
            )


LIGHTER = Config(input_channels=64, channels=96, heads=1, layers=6)


class SelfBlock(nn.Module):
    """Let the tokens of one image look at each other; positions turn queries and keys."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(channels, 3 * channels)
        self.out_proj = nn.Linear(channels, channels)
        self.ffn = _feed_forward(channels)

    def forward(self, tokens: Tensor, rotation: Rotation, mask: Tensor | None = None) -> Tensor:
        """Update (B, N, C) tokens; those where the (B, N) mask is False are never looked at."""
        weight, bias = self._by_kind(self.Wqkv.weight), self._by_kind(self.Wqkv.bias)
        projected = torch.unflatten(F.linear(tokens, weight, bias), -1, (3 * self.heads, -1))
        turning, value = projected.transpose(1, 2).tensor_split([2 * self.heads], dim=1)
        query, key = rotate(turning, rotation).chunk(2, dim=1)  # (B, heads, N, C/heads)
        message = attend(query, key, value, mask)
        return _update(self.ffn, tokens, self.out_proj(_merge_heads(message)))

    def _by_kind(self, parameter: Tensor) -> Tensor:
        """Put all queries before all keys before all values; the files have them in turn.

        To order the parameters takes no time, to order what they make of the tokens takes long.
        """
        rows = torch.unflatten(parameter, 0, (self.heads, -1, 3))  # (heads, C/heads, 3, ...)
        return rows.movedim(2, 0).flatten(0, 2)


class CrossBlock(nn.Module):
    """Let the tokens of each image look at the other's; a query is a key of the other direction."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qk = nn.Linear(channels, channels)
        self.to_v = nn.Linear(channels, channels)
        self.to_out = nn.Linear(channels, channels)
        self.ffn = _feed_forward(channels)

    def forward(
        self,
        tokens0: Tensor,
        tokens1: Tensor,
        mask0: Tensor | None = None,
        mask1: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Update (B, M, C) and (B, N, C) tokens, both from what they were before."""
        if _fit_one_batch(tokens0, tokens1, mask0, mask1):
            tokens = torch.cat([tokens0, tokens1])
            key, value = self._project(tokens)
            updated = self._read(tokens, key, _swap_halves(key), _swap_halves(value))
            tokens0, tokens1 = updated.chunk(2)
            return tokens0, tokens1
        (key0, value0), (key1, value1) = self._project(tokens0), self._project(tokens1)
        return (
            self._read(tokens0, key0, key1, value1, mask1),
            self._read(tokens1, key1, key0, value0, mask0),
        )

    def attention(self, tokens0: Tensor, tokens1: Tensor) -> Tensor:
        """Compute how much tokens of image 0 look at those of image 1: (B, heads, M, N)."""
        key0, key1 = self._split(self.to_qk(tokens0)), self._split(self.to_qk(tokens1))
        return torch.softmax(key0 @ key1.transpose(-1, -2) / key0.shape[-1] ** 0.5, dim=-1)

    def _project(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Give the (B, heads, N, C/heads) keys and values of tokens."""
        return self._split(self.to_qk(tokens)), self._split(self.to_v(tokens))

    def _split(self, projected: Tensor) -> Tensor:
        """(B, N, C) to (B, heads, N, C/heads)."""
        return torch.unflatten(projected, -1, (self.heads, -1)).transpose(1, 2)

    def _read(
        self, tokens: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Update tokens from the keys and values of the other image."""
        return _update(self.ffn, tokens, self.to_out(_merge_heads(attend(query, key, value, mask))))


class Layer(nn.Module):
    """One self and one cross block."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.self_attn = SelfBlock(channels, heads)
        self.cross_attn = CrossBlock(channels, heads)

    def forward(
        self,
        tokens: tuple[Tensor, Tensor],
        rotations: tuple[Rotation, Rotation],
        masks: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> tuple[Tensor, Tensor]:
        """Update the tokens of both images: (B, M, C) and (B, N, C)."""
        if _fit_one_batch(*tokens, *masks):
            tokens0, tokens1 = self.self_attn(torch.cat(tokens), torch.cat(rotations)).chunk(2)
        else:
            tokens0 = self.self_attn(tokens[0], rotations[0], masks[0])
            tokens1 = self.self_attn(tokens[1], rotations[1], masks[1])
        updated: tuple[Tensor, Tensor] = self.cross_attn(tokens0, tokens1, *masks)
        return updated


class AssignmentHead(nn.Module):
    """Compare tokens after a layer: how like two are, and how likely one has a partner."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.matchability = nn.Linear(channels, 1)
        self.final_proj = nn.Linear(channels, channels)

    def project(self, tokens: Tensor) -> Tensor:
        """Project (B, N, C) tokens so that the dot product of two is their similarity."""
        projected: Tensor = self.final_proj(tokens)
        return projected / math.pow(projected.shape[-1], 0.25)

    def similarity(self, tokens0: Tensor, tokens1: Tensor) -> Tensor:
        """Compare all tokens: (B, M, N) float32."""
        similarity: Tensor = self.project(tokens0) @ self.project(tokens1).mT
        return similarity.float()

    def matchable(self, tokens: Tensor) -> Tensor:
        """Give the (B, N) float32 log-odds that a token has a partner in the other image."""
        logits: Tensor = self.matchability(tokens)
        return logits[..., 0].float()


class TokenConfidence(nn.Module):
    """Say how sure a token is that later layers would not change its partner."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.token = nn.Sequential(nn.Linear(channels, 1), nn.Sigmoid())

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, C) tokens to (B, N) confidences in [0, 1]; no gradient reaches the tokens."""
        confidence: Tensor = self.token(tokens.detach())
        return confidence[..., 0].float()


class Context(nn.Module):
    """All layers with their heads: the whole published network but for its decisions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, heads, layers = config.channels, config.heads, config.layers
        self.config = config
        same = config.input_channels == channels
        self.input_proj = nn.Identity() if same else nn.Linear(config.input_channels, channels)
        self.posenc = RotaryEncoding(channels // heads)
        self.transformers = nn.ModuleList(Layer(channels, heads) for _ in range(layers))
        self.log_assignment = nn.ModuleList(AssignmentHead(channels) for _ in range(layers))
        self.token_confidence = nn.ModuleList(TokenConfidence(channels) for _ in range(layers - 1))

    def forward(
        self,
        descriptors: tuple[Tensor, Tensor],
        points: tuple[Tensor, Tensor],
        masks: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> tuple[Tensor, Tensor]:
        """Run every layer.

        Args:
            descriptors: (B, M, input_channels) and (B, N, input_channels).
            points: (B, M, 2) and (B, N, 2), (x, y) normalised to [-1, 1] along the long side.
            masks: (B, M) and (B, N), True at real tokens; None where all are.

        Returns:
            (B, M, C) and (B, N, C) tokens for the last of `log_assignment`.
        """
        tokens = self.input_proj(descriptors[0]), self.input_proj(descriptors[1])
        rotations = self.posenc(points[0]), self.posenc(points[1])
        for layer in self.transformers:
            tokens = layer(tokens, rotations, masks)
        return tokens

    def head(self, depth: int) -> AssignmentHead:
        """Give the head that reads the tokens after so many layers."""
        return cast(AssignmentHead, self.log_assignment[depth - 1])


def first_layers(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Keep the first layers of a LightGlue or LighterGlue file, with their heads.

    LightGlue's files also hold its confidence thresholds, which follow from the number of layers;
    they are dropped.
    """
    kept = {"transformers": layers, "log_assignment": layers, "token_confidence": layers - 1}
    return {
        name: value
        for name, value in state.items()
        if name != "confidence_thresholds"
        and (name.split(".")[0] not in kept or int(name.split(".")[1]) < kept[name.split(".")[0]])
    }


def _feed_forward(channels: int) -> nn.Sequential:
    """Make the network that turns a token and its message into the token's change."""
    wide = 2 * channels
    return nn.Sequential(
        nn.Linear(wide, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, channels)
    )


def _update(feed_forward: nn.Module, tokens: Tensor, message: Tensor) -> Tensor:
    """Add to each token what its message changes."""
    change: Tensor = feed_forward(torch.cat([tokens, message], dim=-1))
    return tokens + change


def _fit_one_batch(
    tokens0: Tensor, tokens1: Tensor, mask0: Tensor | None, mask1: Tensor | None
) -> bool:
    """Tell whether the tokens of both images can be treated as the two halves of one batch.

    One large product takes less time than two small ones and leaves fewer threads without work.
    Graphs for other runtimes have counts of any size, so they take the images in turn.
    """
    if torch.compiler.is_compiling() or mask0 is not None or mask1 is not None:
        return False
    return tokens0.shape == tokens1.shape


def _swap_halves(batch: Tensor) -> Tensor:
    """Put the second half of a batch before the first."""
    return batch.roll(len(batch) // 2, 0)


def _merge_heads(message: Tensor) -> Tensor:
    """(B, heads, N, C/heads) to (B, N, C)."""
    return message.transpose(1, 2).flatten(2)
