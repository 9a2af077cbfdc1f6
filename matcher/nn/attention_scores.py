"""Compare a query with a key: the scores that attention can be built on.

Each takes (B, heads, M, C) queries and (B, heads, N, C) keys, whose heads are split already, and
returns (B, heads, M, N) scores, one head not knowing of the others.

Source: Bahdanau et al., ICLR 2015 (additive); Luong et al., EMNLP 2015 (dot, general, concat,
location); Vaswani et al., NeurIPS 2017 (scaled dot).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Dot(nn.Module):
    """q · k; grows with the norms and the number of channels."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair."""
        return query @ key.mT


class ScaledDot(nn.Module):
    """q · k / √C: of variance 1 if all components of q and k are independent and of variance 1."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair."""
        scores: Tensor = query @ key.mT / query.shape[-1] ** 0.5
        return scores


class General(nn.Module):
    """q · W k, with a matrix a head; it starts as the scaled dot product."""

    def __init__(self, channels: int, heads: int = 1) -> None:
        super().__init__()
        start = torch.eye(channels).expand(heads, -1, -1) / channels**0.5
        self.weight = nn.Parameter(start.clone())

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair."""
        scores: Tensor = query @ self.weight @ key.mT
        return scores


class Additive(nn.Module):
    """w · tanh(W_q q + W_k k), a small perceptron a head.

    M · N · width multiplications and as many tanh, where a dot product takes M · N · C; all M · N
    hidden layers are held at once.
    """

    def __init__(self, channels: int, heads: int = 1, width: int = 32) -> None:
        super().__init__()
        self.of_query = nn.Parameter(torch.randn(heads, channels, width) / channels**0.5)
        self.of_key = nn.Parameter(torch.randn(heads, channels, width) / channels**0.5)
        self.weight = nn.Parameter(torch.randn(heads, width) / width**0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair."""
        return _additive(query @ self.of_query, key @ self.of_key, self.weight)


class Concat(nn.Module):
    """w · tanh(W [q; k]): the additive score, its two matrices trained as one."""

    def __init__(self, channels: int, heads: int = 1, width: int = 32) -> None:
        super().__init__()
        scale = (2 * channels) ** 0.5
        self.of_both = nn.Parameter(torch.randn(heads, 2 * channels, width) / scale)
        self.weight = nn.Parameter(torch.randn(heads, width) / width**0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair."""
        of_query, of_key = self.of_both.chunk(2, dim=1)
        return _additive(query @ of_query, key @ of_key, self.weight)


class Location(nn.Module):
    """W q: a query asks for places, whatever lies there."""

    def __init__(self, channels: int, heads: int = 1, places: int = 1024) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, channels, places) / channels**0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair.

        Raises:
            ValueError: There are more keys than places.
        """
        count, places = key.shape[-2], self.weight.shape[-1]
        if count > places:
            raise ValueError(f"the location score knows {places} places, not {count}")
        return query @ self.weight[..., :count]


def _additive(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Sum up (B, heads, M, width) and (B, heads, N, width) by weights (heads, width)."""
    hidden = torch.tanh(query[..., :, None, :] + key[..., None, :, :])  # (B, heads, M, N, width)
    return torch.einsum("bhmnw,hw->bhmn", hidden, weight)


SCORES: dict[str, Callable[[int, int], nn.Module]] = {
    "dot": lambda _channels, _heads: Dot(),
    "scaled-dot": lambda _channels, _heads: ScaledDot(),
    "general": General,
    "additive": Additive,
    "concat": Concat,
    "location": Location,
}
