"""XFeat: its keypoints, mutually nearest, with a least cosine.

Source: Potje et al., XFeat: Accelerated Features for Lightweight Image Matching, CVPR 2024.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matcher import features
from matcher.methods._options import split
from matcher.methods._sparse import Nearest, NearestOptions, SparseMatcher


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SparseMatcher:
    """Make the method.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for those that ship, a file or folder, or None for random ones.
        **options: Fields of `NearestOptions` and of `matcher.features.xfeat.Options`.
    """
    own, rest = split(NearestOptions, options, min_cosine=0.82)  # as published
    given = {"subpixel": False} | rest  # as published
    front_end = features.build("xfeat", device=device, weights=weights, **given)
    return SparseMatcher("xfeat", front_end, Nearest(own, device))
