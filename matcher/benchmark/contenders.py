"""What can be timed: this package's methods, and whole networks of other packages.

A peer without its weights is timed with random ones: its layers cost the same, only what depends on
how much is found may differ. Thresholds are then zero, so that later stages have their full work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matcher import methods
from matcher.extras import require
from matcher.nn.devices import choose_device
from matcher.types import Image, Matches


@dataclass(frozen=True)
class Contender:
    """Something that matches two images.

    Attributes:
        name: Of its row.
        describe: Makes what it needs of two grey images.
        match: Turns that into matches, or into nothing where only time counts.
        refines: Whether its matches go through the refinement.
        trained: False where the weights are random.
    """

    name: str
    describe: Callable[[Sequence[Image]], Any]
    match: Callable[[Any], Matches | None]
    refines: bool = False
    trained: bool = True


def contender(
    label: str, name: str, fields: Mapping[str, Any], device: str = "auto", refine: bool = True
) -> Contender:
    """Make one by name.

    Args:
        label: Of its row.
        name: A method, or a name of `PEERS`.
        fields: The method's options.
        device: Where it runs.
        refine: Whether a method's matches are refined.

    Raises:
        ValueError: There is no such method or peer.
        ImportError: It needs an optional package.
        TypeError: It has no such option.
    """
    if name in PEERS:
        return PEERS[name](device)
    known = [*methods.names(), *PEERS]
    if name not in known:
        raise ValueError(f"no method or peer {name!r}; there are {', '.join(known)}")
    try:
        method = methods.build(name, device=device, **fields)
    except FileNotFoundError:  # weights that were not fetched
        method = methods.build(name, device=device, weights=None, **fields)

    def match(described: Any) -> Matches:
        return method.match([(described[0], described[1])])[0]

    trained = not getattr(method, "untrained", False)
    return Contender(label, method.describe, match, refine, trained)


def _kornia_loftr(device: str) -> Contender:
    kornia = require("kornia", "the comparison").feature.loftr.loftr
    config = {**kornia.default_cfg, "match_coarse": {**kornia.default_cfg["match_coarse"]}}
    config["match_coarse"]["thr"] = 0.0
    network = kornia.LoFTR(pretrained=None, config=config).eval().to(choose_device(device))

    def match(pair: Sequence[Tensor]) -> None:
        with torch.inference_mode():
            network({"image0": pair[0], "image1": pair[1]})

    return Contender("kornia-loftr", _batches(device), match, trained=False)


def _transformers_superglue(device: str) -> Contender:
    module = require("transformers", "the comparison")
    points = module.SuperPointConfig(keypoint_threshold=0.0, max_keypoints=1024)
    config = module.SuperGlueConfig(keypoint_detector_config=points, matching_threshold=0.0)
    network = module.SuperGlueForKeypointMatching(config)
    return _whole_pair("transformers-superglue", network, device)


def _transformers_eloftr(device: str) -> Contender:
    module = require("transformers", "the comparison")
    network = module.EfficientLoFTRForKeypointMatching(
        module.EfficientLoFTRConfig(coarse_matching_threshold=0.0)
    )
    return _whole_pair("transformers-eloftr", network, device)


def _whole_pair(name: str, network: Any, device: str) -> Contender:
    """Time a network that takes both images at once, as (1, 2, 3, H, W)."""
    network = network.eval().to(choose_device(device))

    def describe(images: Sequence[Image]) -> Tensor:
        height, width = (min(image.shape[axis] for image in images) for axis in (0, 1))
        pair = np.stack([image[:height, :width] for image in images])
        return (
            torch.from_numpy(pair)[None, :, None]
            .expand(-1, -1, 3, -1, -1)
            .to(choose_device(device))
        )

    def match(pair: Tensor) -> None:
        with torch.inference_mode():
            network(pair)

    return Contender(name, describe, match, trained=False)


def _batches(device: str) -> Callable[[Sequence[Image]], list[Tensor]]:
    """Make (1, 1, H, W) tensors of grey images."""
    place = choose_device(device)
    return lambda images: [torch.from_numpy(image)[None, None].to(place) for image in images]


PEERS: Mapping[str, Callable[[str], Contender]] = {
    "kornia-loftr": _kornia_loftr,
    "transformers-eloftr": _transformers_eloftr,
    "transformers-superglue": _transformers_superglue,
}
