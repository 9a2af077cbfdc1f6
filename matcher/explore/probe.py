"""Ask a method about one point: how every stage of it answers, from raw features to the assignment.

A method runs once on the pair, watched; every question after that costs a few rows. The token of
image 0 that lies nearest to the point answers for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from matcher import refinement
from matcher.explore.watching import Trace, watched
from matcher.matching import bare
from matcher.nn.coarse_to_fine import CoarseToFine
from matcher.nn.streaming import BUDGET, Scores
from matcher.types import Description, Floats, Matcher, Matches


@dataclass(frozen=True, eq=False)
class Answer:
    """How the tokens of image 1 answer one token of image 0.

    Attributes:
        token: Row of the token that was asked; -1 where image 0 has none, and all below is empty.
        before: (N,) cosines of the descriptors, each image described alone.
        attention: (layers, heads, N) weights of the cross-attention, each row of sum 1.
        after: (N,) similarities in the context of both images; None without context.
        assignment: (N,) probabilities of a match; None for a method without such.
        dustbin: Probability of having no partner; None where the assignment has no dustbin.
        match: Row of the matches that the token is part of; -1 for none.
    """

    token: int
    before: Floats
    attention: Floats
    after: Floats | None = None
    assignment: Floats | None = None
    dustbin: float | None = None
    match: int = -1


@dataclass(frozen=True, eq=False)
class Probe:
    """A pair under one method.

    Attributes:
        descriptions: Of both images.
        found: Matches as the method gives them.
        matches: The same, moved to their sub-pixel places; row i is row i of `found`.
        seconds: What describing, matching and refining took.
        at_work: Tokens of image 0 and of image 1 in each layer of cross-attention.
    """

    descriptions: tuple[Description, Description]
    found: Matches
    matches: Matches
    seconds: tuple[float, float, float]
    at_work: tuple[tuple[int, int], ...] = ()
    _trace: Trace = field(default_factory=Trace)
    _network: CoarseToFine | None = None

    @property
    def heads(self) -> int:
        """Heads of the cross-attention; 0 for a method without."""
        return len(self._trace.crossings[0].weights(0)) if self._trace.crossings else 0

    @property
    def layers(self) -> int:
        """Layers of cross-attention; 0 for a method without."""
        return len(self._trace.crossings)

    @property
    def assignment(self) -> str:
        """What decides about matches, in words."""
        if self._trace.log_assignment is not None or self._floored:
            return "optimal transport with a dustbin (Sinkhorn)"
        return "dual softmax" if self._scores is not None else "mutual best"

    def attention(self, layer: int, tokens: NDArray[np.int64]) -> Floats:
        """Compute how some tokens of image 0 look at image 1: (heads, K, N) weights, sums of 1.

        Raises:
            ValueError: There is no such layer; they count from 1.
        """
        if not 1 <= layer <= self.layers:
            raise ValueError(f"layer must be 1 to {self.layers}, not {layer}")
        crossing = self._trace.crossings[layer - 1]
        rows = [_numbers(crossing.weights(int(token))) for token in tokens]
        heads, count = self.heads, len(self.descriptions[1])
        return np.stack(rows, 1) if rows else np.zeros((heads, 0, count), np.float32)

    def answer(self, point0: tuple[float, float]) -> Answer:
        """Ask about a point (x, y) of image 0."""
        description0, description1 = self.descriptions
        if not len(description0):
            none = np.zeros(len(description1), np.float32)
            return Answer(-1, none, np.zeros((0, 0, len(description1)), np.float32))
        distances = np.linalg.norm(description0.points - np.asarray(point0, np.float32), axis=1)
        token = int(distances.argmin())
        assignment, dustbin = self._assignment(token)
        return Answer(
            token,
            _cosines(description0.descriptors[token], description1.descriptors),
            self._attention(token),
            self._after(token),
            assignment,
            dustbin,
            self._match(token),
        )

    def _attention(self, token: int) -> Floats:
        if not self._trace.crossings:
            return np.zeros((0, 0, len(self.descriptions[1])), np.float32)
        rows = [crossing.weights(token) for crossing in self._trace.crossings]
        return _numbers(torch.stack(rows))

    def _after(self, token: int) -> Floats | None:
        if not self._trace.compared:
            return None
        compared0, compared1 = self._trace.compared
        return _numbers(compared1 @ compared0[token])

    def _assignment(self, token: int) -> tuple[Floats | None, float | None]:
        """Give the token's row of the assignment, and what of it lies in the dustbin."""
        if self._trace.log_assignment is not None:
            row = _numbers(self._trace.log_assignment[token].exp())
            return row[:-1], float(row[-1])
        if self._scores is None:
            return None, None
        row = _numbers(self._scores.rows(torch.tensor([token]).to(self._scores.bias0.device))[0])
        floor = self._scores.floor0
        return np.exp(row), None if floor is None else float(floor[token].exp())

    @cached_property
    def _scores(self) -> Scores | None:
        """The assignment of a network that never holds it whole."""
        if self._network is None or not self._trace.related:
            return None
        with torch.inference_mode():
            related0, related1 = self._trace.related
            return self._network.score(related0, related1, BUDGET)

    @property
    def _floored(self) -> bool:
        return self._scores is not None and self._scores.floor0 is not None

    def _match(self, token: int) -> int:
        """Find the match that a token is part of: by its row, or by the cell round its point."""
        if self.found.indices is not None:
            rows = np.flatnonzero(self.found.indices[:, 0] == token)
            return int(rows[0]) if len(rows) else -1
        if not len(self.found):
            return -1
        point = self.descriptions[0].points[token]
        distances = np.linalg.norm(self.found.points0 - point, axis=1)
        nearest = int(distances.argmin())
        return nearest if distances[nearest] <= _SAME_CELL else -1


_SAME_CELL = 6.0  # pixels between a cell's point and its match: half the diagonal of a cell of 8


def probe(method: Matcher, images: tuple[NDArray[np.float32], NDArray[np.float32]]) -> Probe:
    """Describe, match and refine a pair, and watch.

    Args:
        method: Its stages, without those that `matcher.create` puts round it.
        images: Both, (H, W) or (H, W, 3) in [0, 1].
    """
    start = time.perf_counter()
    method = bare(method)
    description0, description1 = method.describe(list(images))
    described = time.perf_counter()
    network = getattr(method, "network", None)
    trace = Trace()
    if isinstance(network, nn.Module):
        with watched(network) as trace:
            found = method.match([(description0, description1)])[0]
    else:
        found = method.match([(description0, description1)])[0]
    matched = time.perf_counter()
    matches = refinement.refine(found, description0.image, description1.image)
    seconds = (described - start, matched - described, time.perf_counter() - matched)
    return Probe(
        (description0, description1),
        found,
        matches,
        seconds,
        tuple((len(each.tokens0), len(each.tokens1)) for each in trace.crossings),
        trace.of(len(description0), len(description1)),
        network if hasattr(network, "score") else None,
    )


def _cosines(query: Floats, keys: Floats) -> Floats:
    """Compare a (D,) with (N, D) descriptors: (N,) in [-1, 1]."""
    query, keys = np.asarray(query, np.float32), np.asarray(keys, np.float32)
    norms = np.linalg.norm(keys, axis=1) * np.linalg.norm(query)
    return np.asarray(keys @ query / np.maximum(norms, 1e-12), np.float32)


def _numbers(values: Tensor) -> Floats:
    numbers: Floats = values.float().cpu().numpy()
    return numbers
