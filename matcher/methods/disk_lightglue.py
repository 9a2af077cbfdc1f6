"""DISK keypoints matched by LightGlue.

Source: Lindenberger, Sarlin, Pollefeys, LightGlue: Local Feature Matching at Light Speed, ICCV
2023.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matcher import features
from matcher.methods._lightglue import LightGlue, LightGlueOptions
from matcher.methods._options import split
from matcher.methods._sparse import SparseMatcher

_SIZES = {"input_dim": 128, "descriptor_dim": 256, "n_layers": 9, "num_heads": 4}


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SparseMatcher:
    """Make the method.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for those that were fetched; a folder that holds the files of both
            networks; or None for random ones.
        **options: Fields of `LightGlueOptions` and of `matcher.features.disk.Options`.
    """
    own, rest = split(LightGlueOptions, {"max_keypoints": 1024} | options)
    front_end = features.build("disk", device=device, weights=weights, **rest)
    assign = LightGlue("disk-lightglue", _SIZES, own, weights, device)
    return SparseMatcher("disk-lightglue", front_end, assign, assign.untrained)
