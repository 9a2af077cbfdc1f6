"""Lower the precision of a graph's products; softmax, norms, transport and places stay float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.extras import require
from matcher.types import Floats

PRECISIONS = ("float32", "float16", "int8")
_PRODUCTS = ("Conv", "MatMul", "Gemm")
_HEADS = 4  # axes of a product of attention, (1, heads, N, C); transport and similarity have fewer
_LARGE = {2: 4096, 4: 32768}  # numbers of a weight, by its axes, worth being stored in 8 bits
_BLOCK = 32  # inputs that share a scale: one for all of them loses a tenth of the matches
_BLOCKS_SINCE = 21  # version of ONNX's operators


def lower(path: Path, precision: str) -> None:
    """Rewrite an exported graph.

    "float16" computes convolutions, products with weights and the two products of attention in half
    precision. "int8" stores weights in 8 bits and computes in float32: products and convolutions in
    8 bits lose matches and are hardly faster.

    Args:
        path: The file, changed in place.
        precision: One of `PRECISIONS`.
    """
    if precision == "float16":
        _halve(path)
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


def _store_in_8_bits(path: Path) -> None:
    """Store large weights as 8-bit numbers with scales, to be computed with as before."""
    onnx = require("onnx", "matcher export")
    model = onnx.load(str(path))
    nodes: list[Any] = []
    for tensor in list(model.graph.initializer):
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < _LARGE.get(values.ndim, values.size + 1):
            continue
        names = [f"{tensor.name}_{kind}" for kind in ("stored", "scale")]
        stored, scale, how = _by_block(values) if values.ndim == 2 else _by_output(values)
        nodes.append(onnx.helper.make_node("DequantizeLinear", names, [tensor.name], **how))
        tensor.CopyFrom(onnx.numpy_helper.from_array(stored, names[0]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(scale, names[1]))
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import[0].version = max(model.opset_import[0].version, _BLOCKS_SINCE)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _by_block(values: Floats) -> tuple[NDArray[np.int8], Floats, dict[str, int]]:
    """Round a matrix, (inputs, outputs), with a scale for some inputs of each output."""
    inputs, outputs = values.shape
    block = math.gcd(inputs, _BLOCK)
    blocks = values.reshape(inputs // block, block, outputs)
    scale = np.abs(blocks).max(1, keepdims=True).clip(1e-12) / 127
    stored = np.rint(blocks / scale).astype(np.int8).reshape(values.shape)
    return stored, scale[:, 0], {"axis": 0, "block_size": block}


def _by_output(values: Floats) -> tuple[NDArray[np.int8], Floats, dict[str, int]]:
    """Round the weights of a convolution, (outputs, ...), with a scale an output."""
    scale = np.abs(values).max((1, 2, 3), keepdims=True).clip(1e-12) / 127
    return np.rint(values / scale).astype(np.int8), scale.ravel(), {"axis": 0}
