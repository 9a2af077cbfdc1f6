"""Exact normalised cross-correlation of a template with every place of a scene."""

from matcher.correlation.kernel import Kernel, make_kernel
from matcher.correlation.scene import Scene, score_map

__all__ = ["Kernel", "Scene", "make_kernel", "score_map"]
