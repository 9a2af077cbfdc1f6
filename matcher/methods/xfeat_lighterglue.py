"""XFeat keypoints matched by LighterGlue, a LightGlue of 6 layers with 96 channels.

Source: Potje et al., XFeat: Accelerated Features for Lightweight Image Matching, CVPR 2024, and
its code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matcher import features
from matcher.methods._lightglue import LightGlue, LightGlueOptions
from matcher.methods._options import split
from matcher.methods._sparse import SparseMatcher

_SIZES = {"input_dim": 64, "descriptor_dim": 96, "n_layers": 6, "num_heads": 1}
_AS_PUBLISHED = {"depth_confidence": -1, "width_confidence": 0.95}


def build(
    *, device: str = "auto", weights: str | Path | None = "default", **options: Any
) -> SparseMatcher:
    """Make the method.

    Args:
        device: See `matcher.nn.devices.choose_device`.
        weights: "default" for those that ship; a folder that holds the files of both networks; or
            None for random ones.
        **options: Fields of `LightGlueOptions` and of `matcher.features.xfeat.Options`.
    """
    own, rest = split(LightGlueOptions, {"max_keypoints": 1024} | options, **_AS_PUBLISHED)
    given = {"subpixel": False} | rest  # as published
    front_end = features.build("xfeat", device=device, weights=weights, **given)
    assign = LightGlue("lighterglue", _SIZES, own, weights, device)
    return SparseMatcher("xfeat-lighterglue", front_end, assign, assign.untrained)
