"""Methods as exported networks, run by onnxruntime: neither torch nor the weights are needed.

`matcher export METHOD` makes a folder with `describe.onnx` and `match.onnx`; both carry the facts
that a runner needs, `Facts`, so that a file of another version is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher import assets, images
from matcher.extras import require
from matcher.features import fit_masks
from matcher.methods._places import inside
from matcher.types import Description, Floats, Image, Mask, Matches, ScoreMap

FORMAT = 1  # of the graphs' inputs, outputs and facts
KEY = "tiepoint"  # of the facts in a file's metadata
PARTS = ("describe", "match")
_KIND = "assignment probability"
_PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
}


@dataclass(frozen=True)
class Facts:
    """What a graph's file says of itself.

    Attributes:
        method: "loftr" or "superglue".
        precision: "float32", "float16" or "int8".
        threshold: Least score of a match.
        limit: Most keypoints or cells of an image.
        channels: Of a descriptor.
        listed: True where matches are of listed points, so that they have indices.
        grey: How colours become grey: "mean" of the channels, or "luma".
        weights: Digest of the weights that it was made from.
        licence: Of the weights.
        untrained: True where they are random.
        version: Of the package that exported it.
        format: Of inputs, outputs and these facts.
    """

    method: str
    precision: str
    threshold: float
    limit: int
    channels: int
    listed: bool
    grey: str
    weights: str
    licence: str
    untrained: bool
    version: str
    format: int = FORMAT


@dataclass(frozen=True)
class Options:
    """What can be chosen; None takes what was exported.

    Attributes:
        threshold: Least score of a match, in [0, 1].
        limit: Most keypoints or cells of an image; time grows with its square.
        threads: Of onnxruntime; None for its own choice, all cores.
    """

    threshold: float | None = None
    limit: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1], not {self.threshold}")
        for name in ("limit", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True, eq=False)
class _Found:
    """What the graph `match` gives for one pair; see `matcher.export.graphs`."""

    indices: NDArray[np.int64]
    scores: Floats
    points0: Floats
    points1: Floats


class OnnxMatcher:
    """An exported method behind the one interface.

    Attributes:
        facts: What the files say of themselves.
        threshold: Least score of a match.
        limit: Most keypoints or cells of an image.
    """

    def __init__(self, describe: Any, match: Any, facts: Facts, options: Options) -> None:
        self.facts = facts
        self.licence = facts.licence
        self.untrained = facts.untrained
        self.threshold = facts.threshold if options.threshold is None else options.threshold
        self.limit = options.limit or facts.limit
        self._describe_graph, self._match_graph = describe, match

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Run the graph `describe` on each image."""
        fitted = fit_masks(images, masks)
        return [self._describe(image, mask) for image, mask in zip(images, fitted, strict=True)]

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Run the graph `match` on each pair.

        Raises:
            ValueError: Another method described an image, or what comes out is not finite.
        """
        return [self._match(*pair) for pair in pairs]

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score every token of image 1 for image 0's nearest one."""
        points1 = pair[1].points
        if not (len(pair[0]) and len(pair[1])):
            return ScoreMap(points1, np.zeros(len(points1), np.float32), kind=_KIND)
        (log_scores,) = self._run_match(*pair, ["log_scores"])
        distances = np.linalg.norm(pair[0].points - np.asarray(point0, np.float32), axis=1)
        return ScoreMap(points1, np.exp(log_scores[int(distances.argmin())]), kind=_KIND)

    def _describe(self, image: Image, mask: Mask | None) -> Description:
        grey = images.grey(image)
        seen = grey if self.facts.grey == "luma" or image.ndim == 2 else image.mean(axis=2)
        allowed = np.ones(grey.shape, np.bool_) if mask is None else mask
        inputs = {"image": seen, "mask": allowed, "limit": np.array(self.limit)}
        points, scores, descriptors = self._describe_graph.run(None, inputs)
        return Description(
            method=self.facts.method,
            image=grey,
            mask=mask,
            points=points,
            scores=scores,
            descriptors=descriptors,
            untrained=self.untrained,
        )

    def _match(self, description0: Description, description1: Description) -> Matches:
        if not (len(description0) and len(description1)):
            return Matches.empty(untrained=self.untrained)
        names = ["indices", "scores", "matched_points0", "matched_points1"]
        found = _Found(*self._run_match(description0, description1, names))
        if not np.isfinite(found.scores).all():
            raise ValueError(f"the exported {self.facts.method} gave scores that are not finite")
        keep = found.scores > self.threshold
        keep &= inside(found.points0, description0.size, description0.mask)
        keep &= inside(found.points1, description1.size, description1.mask)
        matches = Matches(
            found.points0,
            found.points1,
            found.scores.clip(0, 1),
            indices=found.indices if self.facts.listed else None,
            untrained=self.untrained,
        )
        return matches.select(keep).sorted()

    def _run_match(
        self, description0: Description, description1: Description, names: list[str]
    ) -> list[Any]:
        inputs: dict[str, Any] = {}
        for number, description in enumerate((description0, description1)):
            self._check(number, description)
            inputs[f"points{number}"] = description.points
            inputs[f"descriptors{number}"] = np.asarray(description.descriptors, np.float32)
            inputs[f"size{number}"] = np.array(description.size, np.int64)
        found: list[Any] = self._match_graph.run(names, inputs)
        return found

    def _check(self, number: int, description: Description) -> None:
        channels = description.descriptors.shape[1]
        if (description.method, channels) != (self.facts.method, self.facts.channels):
            raise ValueError(
                f"the exported {self.facts.method} matches its own descriptors of "
                f"{self.facts.channels} channels; description {number}, made by "
                f"{description.method}, has {channels}"
            )


def build(
    name: str, *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> OnnxMatcher:
    """Make a method of exported files.

    Args:
        name: "loftr" or "superglue".
        device: "auto" or "cpu"; "cuda" with onnxruntime-gpu.
        weights: The folder that `matcher export` wrote; "default" is where it writes unasked.
        **options: Fields of `Options`.

    Raises:
        ImportError: onnxruntime is not installed.
        FileNotFoundError: The method was not exported there.
        ValueError: A file is of another method or version, or the device is not there.
    """
    chosen = Options(**options)
    if weights is None:
        raise ValueError("backend='onnxruntime' needs exported weights; weights=None has none")
    folder = default_folder(name) if weights == "default" else Path(weights).expanduser()
    runtime = require("onnxruntime", "backend='onnxruntime'")
    providers = _providers(device, runtime.get_available_providers())
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3  # errors: what it warns of concerns its own optimiser
    # products with weights stored in 8 bits: in float32, as the parity report says
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if chosen.threads is not None:
        settings.intra_op_num_threads = chosen.threads
    graphs, facts = [], []
    for part in PARTS:
        path = folder / f"{part}.onnx"
        if not path.is_file():
            raise FileNotFoundError(f"no {path}: `matcher export {name} --out {folder}` makes it")
        graphs.append(runtime.InferenceSession(str(path), settings, providers=providers))
        facts.append(read_facts(graphs[-1].get_modelmeta().custom_metadata_map, name, path))
    if facts[0] != facts[1]:
        raise ValueError(f"the files in {folder} are of two exports: run `matcher export {name}`")
    return OnnxMatcher(graphs[0], graphs[1], facts[0], chosen)


def default_folder(name: str, precision: str = "float32") -> Path:
    """Say where `matcher export` writes unasked, and where a method is looked for."""
    return assets.cache_folder() / "onnx" / f"{name}-{precision}"


def read_facts(metadata: dict[str, str], name: str, path: Path) -> Facts:
    """Read what a file says of itself.

    Raises:
        ValueError: It is none of ours, of another version of the format, or of another method.
    """
    fields = json.loads(metadata.get(KEY, "{}"))
    if fields.get("format") != FORMAT:
        raise ValueError(
            f"{path} is of format {fields.get('format', 'unknown')}, this version reads format "
            f"{FORMAT}: run `matcher export {name}` again"
        )
    facts = Facts(**fields)
    if facts.method != name:
        raise ValueError(f"{path} is an exported {facts.method}, not {name}")
    return facts


def _providers(device: str, there: Sequence[str]) -> list[str]:
    kind = device.partition(":")[0]
    if kind == "auto":
        kind = "cuda" if "CUDAExecutionProvider" in there else "cpu"
    if kind not in _PROVIDERS:
        raise ValueError(f"backend='onnxruntime' has no device {device!r}; there are cpu, cuda")
    if _PROVIDERS[kind][0] not in there:
        raise ValueError(f"device {device!r} needs onnxruntime-gpu, which is not installed")
    index = device.partition(":")[2]
    first: Any = (_PROVIDERS[kind][0], {"device_id": index}) if index else _PROVIDERS[kind][0]
    return [first, *_PROVIDERS[kind][1:]]
