"""Perceptrons of tokens with batch norms, as SuperGlue has them, and their folding for inference."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval


class TokenNorm(nn.BatchNorm1d):
    """Batch norm over tokens; a lone one in training has no spread and takes the running one."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, C) to the same."""
        flat = tokens.flatten(0, -2)  # (B * N, C)
        if self.training and len(flat) < 2:
            known = (self.running_mean, self.running_var, self.weight, self.bias)
            return F.batch_norm(flat, *known, eps=self.eps).reshape_as(tokens)
        return super().forward(flat).reshape_as(tokens)


def perceptron(*channels: int) -> nn.Sequential:
    """Make products of the given sizes with batch norm and ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(channels):
        layers += [nn.Linear(inputs, outputs), TokenNorm(outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def fold(layers: nn.Sequential) -> None:
    """Fold each batch norm into the product before it and leave nothing in its place."""
    for number, (linear, norm) in enumerate(itertools.pairwise(list(layers))):
        if isinstance(linear, nn.Linear) and isinstance(norm, TokenNorm):
            layers[number] = fuse_linear_bn_eval(linear.eval(), norm.eval())
            layers[number + 1] = nn.Identity()
