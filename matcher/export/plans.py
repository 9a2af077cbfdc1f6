"""Which graphs a method is exported as, and which of their axes stay open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import matcher
from matcher import methods, weights
from matcher.export import graphs
from matcher.export.quiet import quiet
from matcher.features._choice import Choice
from matcher.features.xfeat import XFeatFrontEnd
from matcher.methods._onnx import Facts
from matcher.methods.loftr import Loftr
from matcher.methods.superglue import SuperGlueMatcher
from matcher.nn import xfeat
from matcher.nn.loftr_light import LoftrLight
from matcher.nn.superglue_modern import Modern
from matcher.types import Matcher

METHODS = ("loftr", "superglue")

_LARGEST = 1 << 14  # pixels a side, and points an image
_SIDE = xfeat.DIVISOR + 1  # smaller sides are taken too; the tracer asks for more than one tile
_EXAMPLE = (480, 640)  # height and width of the image that is traced; any would do
_COUNTS = 300, 400  # points of the pair that is traced; any two would do

_SIZES: Mapping[str, Any] = {
    "height": Dim("height", min=_SIDE, max=_LARGEST),
    "width": Dim("width", min=_SIDE, max=_LARGEST),
    "count0": Dim("count0", min=2, max=_LARGEST),
    "count1": Dim("count1", min=2, max=_LARGEST),
}


@dataclass(frozen=True, eq=False)
class Part:
    """One graph.

    Attributes:
        name: "describe" or "match".
        module: What computes it.
        inputs: Examples, by name.
        axes: Names of each input's axes; those in `_SIZES` stay open.
        outputs: Names of each output's axes, by name.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]

    def program(self) -> ExportedProgram:
        """Trace the module with its axes left open."""
        open_axes = {
            name: {number: _SIZES[axis] for number, axis in enumerate(axes) if axis in _SIZES}
            for name, axes in self.axes.items()
        }
        with torch.no_grad(), quiet("torch.export"):
            return torch.export.export(
                self.module.eval(),
                (),
                dict(self.inputs),
                dynamic_shapes=open_axes,
                prefer_deferred_runtime_asserts_over_guards=True,
            )


@dataclass(frozen=True)
class Plan:
    """A method's graphs, with what goes with them."""

    method: Matcher
    parts: tuple[Part, Part]
    facts: Facts


def make_plan(name: str, precision: str, options: Mapping[str, Any]) -> Plan:
    """Make a method and plan its graphs.

    Raises:
        ValueError: It cannot be exported, at all or with these options.
    """
    if name not in METHODS:
        raise ValueError(f"{name!r} cannot be exported; {' and '.join(METHODS)} can")
    method = methods.build(name, device="cpu", **options)
    if isinstance(method, Loftr) and _is_light(method):
        return _plan_cells(method, precision)
    if isinstance(method, SuperGlueMatcher) and isinstance(method.network.context, Modern):
        front_end = method.front_end
        if isinstance(front_end, XFeatFrontEnd):
            return _plan_keypoints(method, front_end, precision)
    raise ValueError(
        f"{name} cannot be exported with these options: loftr is with preset 'light' and no "
        "border, tile, scales or max_side, superglue with front end 'xfeat' and modern layers"
    )


def _is_light(method: Loftr) -> bool:
    """Tell whether we have the graphs of a detector-free method."""
    plain = method.options.max_side is None and not method.border
    return plain and isinstance(method.network, LoftrLight)


def _plan_cells(method: Loftr, precision: str) -> Plan:
    network = cast(LoftrLight, method.network)
    facts = Facts(
        method="loftr",
        precision=precision,
        threshold=method.threshold,
        limit=method.tokens or _LARGEST,
        channels=xfeat.CHANNELS,
        listed=False,
        grey="luma",
        weights=weights.digest(network.state_dict()),
        licence=method.licence,
        untrained=method.untrained,
        version=matcher.__version__,
    )
    describe = _describing(graphs.DescribeCells(method, Choice.min_contrast), facts.limit)
    return Plan(method, (describe, _matching(graphs.MatchCells(method))), facts)


def _plan_keypoints(method: SuperGlueMatcher, front_end: XFeatFrontEnd, precision: str) -> Plan:
    networks = nn.ModuleList([front_end.network, method.network])
    facts = Facts(
        method="superglue",
        precision=precision,
        threshold=method.threshold,
        limit=front_end.options.max_keypoints or _LARGEST,
        channels=xfeat.CHANNELS,
        listed=True,
        grey="mean",
        weights=weights.digest(networks.state_dict()),
        licence=method.licence,
        untrained=method.untrained,
        version=matcher.__version__,
    )
    describe = _describing(graphs.DescribeKeypoints(front_end), facts.limit)
    return Plan(method, (describe, _matching(graphs.MatchByTransport(method))), facts)


def _describing(module: nn.Module, limit: int) -> Part:
    return Part(
        "describe",
        module,
        {
            "image": torch.rand(_EXAMPLE, generator=torch.Generator().manual_seed(0)),
            "mask": torch.ones(_EXAMPLE, dtype=torch.bool),
            "limit": torch.tensor(limit),
        },
        {"image": ("height", "width"), "mask": ("height", "width"), "limit": ()},
        {
            "points": ("count", "2"),
            "scores": ("count",),
            "descriptors": ("count", "channels"),
        },
    )


def _matching(module: nn.Module) -> Part:
    inputs: dict[str, Tensor] = {}
    axes: dict[str, Sequence[str]] = {}
    for number, count in enumerate(_COUNTS):
        generator = torch.Generator().manual_seed(number)
        inputs[f"points{number}"] = 400 * torch.rand(count, 2, generator=generator)
        inputs[f"descriptors{number}"] = torch.randn(count, xfeat.CHANNELS, generator=generator)
        inputs[f"size{number}"] = torch.tensor(_EXAMPLE)
        axes[f"points{number}"] = (f"count{number}", "2")
        axes[f"descriptors{number}"] = (f"count{number}", "channels")
        axes[f"size{number}"] = ("2",)
    outputs = {
        "indices": ("matches", "2"),
        "scores": ("matches",),
        "matched_points0": ("matches", "2"),
        "matched_points1": ("matches", "2"),
        "log_scores": ("count0", "count1"),
    }
    return Part("match", module, inputs, axes, outputs)
