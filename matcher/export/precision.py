"""Lower the precision of a graph's products; softmax, norms, transport and places stay float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from matcher import images
from matcher.export.quiet import quiet
from matcher.extras import require
from matcher.types import Pair

PRECISIONS = ("float32", "float16", "int8")
_PRODUCTS = ("Conv", "MatMul", "Gemm")
_HEADS = 4  # axes of a product of attention, (1, heads, N, C); transport and similarity have fewer
_CALIBRATION = 8  # images: ranges hardly move with more
_COARSE = ("block4", "block5")  # XFeat's, where most of its weights are; see docs/performance.md
_LARGE = 4096  # numbers of a matrix that is worth being stored in 8 bits


def lower(path: Path, precision: str, pairs: Sequence[Pair]) -> None:
    """Rewrite an exported graph.

    "float16" computes convolutions, products with weights and the two products of attention in half
    precision. "int8" computes the coarse convolutions of `describe` in 8 bits (ranges from the
    pairs), and stores the weights of `match` in 8 bits. Finer convolutions, and products of `match`,
    lose matches in 8 bits and are hardly faster.

    Args:
        path: The file, changed in place.
        precision: One of `PRECISIONS`.
        pairs: Whose images give the ranges.
    """
    if precision == "float16":
        _halve(path)
    elif precision == "int8" and path.stem == "describe":
        _quantise_convolutions(path, pairs)
    elif precision == "int8":
        _store_in_8_bits(path)


class _Halver:
    """Builds the list of nodes of a graph whose large products are in float16."""

    def __init__(self, onnx: Any, graph: Any) -> None:
        self.onnx = onnx
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.axes = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*graph.value_info, *graph.input, *graph.output)
        }
        self.nodes: list[Any] = []
        self.halves: dict[str, str] = {}  # by the name of the float32 value

    def add(self, node: Any) -> None:
        """Append a node; a large product with casts round it."""
        if not self._is_large(node):
            self.nodes.append(node)
            return
        node.input[:] = [self._half(name) if name else name for name in node.input]
        whole, half = node.output[0], f"{node.output[0]}_half"
        node.output[0] = half
        self.halves[whole] = half
        self.nodes += [node, self._cast(half, whole, self.onnx.TensorProto.FLOAT)]

    def _is_large(self, node: Any) -> bool:
        if node.op_type not in _PRODUCTS:
            return False
        return node.input[1] in self.weights or self.axes.get(node.output[0], 0) == _HEADS

    def _half(self, name: str) -> str:
        """Name the float16 form of a value, and make it where there is none yet."""
        if name not in self.halves:
            self.halves[name] = f"{name}_half"
            self.nodes.append(self._cast(name, self.halves[name], self.onnx.TensorProto.FLOAT16))
        return self.halves[name]

    def _cast(self, source: str, target: str, kind: int) -> Any:
        return self.onnx.helper.make_node("Cast", [source], [target], to=kind)


def _halve(path: Path) -> None:
    """Put the large products of a file in float16, weights included."""
    onnx = require("onnx", "matcher export")
    model = onnx.load(str(path))
    halver = _Halver(onnx, model.graph)
    for node in model.graph.node:
        halver.add(node)
    stored = set()
    for tensor in model.graph.initializer:
        half = halver.halves.get(tensor.name)
        if half is not None and not _is_read(halver.nodes, tensor.name, half):
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, half))
            stored.add(half)
    kept = [node for node in halver.nodes if not stored & set(node.output)]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _is_read(nodes: Sequence[Any], name: str, half: str) -> bool:
    """Tell whether a weight is read by anything but the cast to its half."""
    return any(name in node.input and half not in node.output for node in nodes)


def _quantise_convolutions(path: Path, pairs: Sequence[Pair]) -> None:
    """Give the coarse convolutions 8-bit weights and activations."""
    onnx = require("onnx", "matcher export")
    require("onnxruntime", "matcher export")
    quantise = import_module("onnxruntime.quantization")
    chosen = [path for pair in pairs for path in (pair.image0, pair.image1)][:_CALIBRATION]
    nodes = [
        node.name
        for node in onnx.load(str(path)).graph.node
        if node.op_type == "Conv" and any(block in node.input[1] for block in _COARSE)
    ]
    with quiet(""):
        quantise.quantize_static(
            path, path, _Ranges(chosen), nodes_to_quantize=nodes, per_channel=True
        )


def _store_in_8_bits(path: Path) -> None:
    """Store large weights as 8-bit numbers, with a scale a column, to be computed with as before."""
    onnx = require("onnx", "matcher export")
    model = onnx.load(str(path))
    nodes: list[Any] = []
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim != 2 or values.size < _LARGE:
            continue
        scale = np.abs(values).max(axis=0).clip(1e-12) / 127
        stored = np.rint(values / scale).astype(np.int8)
        names = [f"{tensor.name}_{kind}" for kind in ("stored", "scale")]
        nodes.append(onnx.helper.make_node("DequantizeLinear", names, [tensor.name], axis=1))
        tensor.CopyFrom(onnx.numpy_helper.from_array(stored, names[0]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(scale, names[1]))
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


class _Ranges:
    """Feeds images to onnxruntime's calibration, one a call, then None."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._inputs = self._each(paths)

    def get_next(self) -> dict[str, Any] | None:
        """Give the next image's inputs."""
        return next(self._inputs, None)

    @staticmethod
    def _each(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
        for path in paths:
            picture = images.grey(images.read(path))
            size = images.fit_long_side((picture.shape[0], picture.shape[1]), 640)
            picture = images.resize(picture, size)
            allowed = np.ones(picture.shape, np.bool_)
            yield {"image": picture, "mask": allowed, "limit": np.array(1024)}
