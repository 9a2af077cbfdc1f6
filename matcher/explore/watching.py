"""Watch a network while it matches a pair: what its cross-attention saw, what it compared in the end.

Nothing is computed twice and no network is written for it: hooks note what passes through the layers
of one ordinary run. Rows of attention are made from the notes when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn.loftr import EncoderLayer, Transformer
from matcher.nn.superglue import Assigned, SuperGlue
from matcher.nn.superglue_published import Propagation
from matcher.nn.transformer import CrossBlock


@dataclass(frozen=True, eq=False)
class Crossing:
    """What entered one cross-attention.

    Attributes:
        layer: The block that looked across.
        tokens0: (M, C) tokens of image 0, which ask.
        tokens1: (N, C) tokens of image 1, which answer.
    """

    layer: nn.Module
    tokens0: Tensor
    tokens1: Tensor

    @torch.inference_mode()
    def weights(self, row: int) -> Tensor:
        """Compute how much one token of image 0 looked at each of image 1: (heads, N), sums of 1."""
        query, source = self.tokens0[None, row : row + 1], self.tokens1[None]
        weights: Tensor = _WEIGHTS[type(self.layer)](self.layer, query, source)
        return weights[0, :, 0]


@dataclass(eq=False)
class Trace:
    """What was noted of one run.

    Attributes:
        crossings: Cross-attentions from image 0 to image 1, first layer first.
        related: Tokens (M, C) and (N, C) after all context; empty for a network without.
        compared: What became of them, whose scalar products are the similarities.
        log_assignment: (M + 1, N + 1) logarithm of the transport; None where there was none.
    """

    crossings: list[Crossing] = field(default_factory=list)
    related: list[Tensor] = field(default_factory=list)
    compared: list[Tensor] = field(default_factory=list)
    log_assignment: Tensor | None = None

    def of(self, count0: int, count1: int) -> Trace:
        """Keep what is of all tokens of the images: where some were dropped, rows mean others."""
        sizes = (count0, count1)
        crossings = [c for c in self.crossings if (len(c.tokens0), len(c.tokens1)) == sizes]
        if tuple(map(len, self.compared)) == sizes:
            return Trace(crossings, self.related, self.compared, self.log_assignment)
        return Trace(crossings, log_assignment=self.log_assignment)


@contextmanager
def watched(network: nn.Module) -> Iterator[Trace]:
    """Note what passes through a network's layers; one pair may run meanwhile."""
    trace = Trace()
    handles = [
        module.register_forward_hook(_noting(trace, note))
        for name, module in network.named_modules()
        for note in [_note_of(name, module)]
        if note is not None
    ]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


_Note = Callable[[Trace, nn.Module, Sequence[Any], Any], None]


def _note_of(name: str, module: nn.Module) -> _Note | None:
    """Choose what to note of a module; None for nothing."""
    if type(module) in _WEIGHTS:
        return _note_crossing
    if isinstance(module, SuperGlue):
        return _note_assignment
    if isinstance(module, Transformer) and name.endswith("coarse"):
        return _note_tokens
    return _note_projection if name.endswith("final_proj") else None


def _noting(trace: Trace, note: _Note) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Sequence[Any], output: Any) -> None:
        note(trace, module, inputs, output)

    return hook


def _note_crossing(trace: Trace, module: nn.Module, inputs: Sequence[Any], _: Any) -> None:
    """Note the first look across of each block; a second one is that of image 1."""
    tokens, source = inputs[:2]
    across = tokens is not source and len(tokens) == 1
    if across and all(crossing.layer is not module for crossing in trace.crossings):
        trace.crossings.append(Crossing(module, tokens[0], source[0]))


def _note_projection(trace: Trace, _: nn.Module, inputs: Sequence[Any], output: Tensor) -> None:
    """Note the tokens (1, N, C) or (N, C) of one image, and what they are compared as."""
    channels = output.shape[-1]
    trace.related.append(inputs[0].reshape(-1, inputs[0].shape[-1]))
    trace.compared.append(output.reshape(-1, channels) / channels**0.25)


def _note_tokens(trace: Trace, _: nn.Module, __: Sequence[Any], output: Any) -> None:
    trace.related = [tokens[0] for tokens in output]
    trace.compared = [tokens[0] / tokens.shape[-1] ** 0.5 for tokens in output]


def _note_assignment(trace: Trace, _: nn.Module, __: Sequence[Any], output: Assigned) -> None:
    trace.log_assignment = output.log_assignment[0]


def _of_cross_block(layer: nn.Module, tokens: Tensor, source: Tensor) -> Tensor:
    return cast(CrossBlock, layer).attention(tokens, source)


def _of_propagation(layer: nn.Module, tokens: Tensor, source: Tensor) -> Tensor:
    block = cast(Propagation, layer)
    query = _heads(block.query(tokens), block.heads)
    key = _heads(block.key_value(source).chunk(2, dim=-1)[0], block.heads)
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, dim=-1)


def _of_encoder(layer: nn.Module, tokens: Tensor, source: Tensor) -> Tensor:
    """Linear attention weighs too: by the products of its features, divided by their sum."""
    block = cast(EncoderLayer, layer)
    query = F.elu(_heads(block.q_proj(tokens), block.heads)) + 1
    products = query @ (F.elu(_heads(block.k_proj(source), block.heads)) + 1).mT
    return products / products.sum(-1, keepdim=True).clamp_min(1e-12)


def _heads(projected: Tensor, heads: int) -> Tensor:
    """(B, N, C) to (B, heads, N, C/heads)."""
    return torch.unflatten(projected, -1, (heads, -1)).transpose(1, 2)


_WEIGHTS: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    CrossBlock: _of_cross_block,
    Propagation: _of_propagation,
    EncoderLayer: _of_encoder,
}
