"""Normalised cross-correlation of a template with every place of a scene: exact, or quick."""

from matcher.correlation.kernel import Kernel, make_kernel
from matcher.correlation.quick import quick_score_map
from matcher.correlation.scene import Scene, score_map

__all__ = ["Kernel", "Scene", "make_kernel", "quick_score_map", "score_map"]
