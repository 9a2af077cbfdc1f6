"""Score a small picture of bytes roughly, for a survey whose peaks are scored again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.sums import opencv
from matcher.correlation.tiles import in_threads, make_plan
from matcher.types import Floats


def quick_score_map(template: NDArray[np.uint8], scene: NDArray[np.uint8]) -> Floats:
    """Score every placement of a template by OpenCV's own zero-mean NCC, a strip a thread.

    It is computed in float32 on pixels as they are and errs by some thousandths where a window has
    little contrast beside its brightness. Needs OpenCV.

    Args:
        template: (h, w) or (h, w, 3) bytes.
        scene: (H, W) or (H, W, 3) bytes, no smaller.

    Returns:
        (H - h + 1, W - w + 1) in [-1, 1].
    """
    cv2: Any = opencv()
    h, w = template.shape[:2]
    scores = np.empty((scene.shape[0] - h + 1, scene.shape[1] - w + 1), np.float32)
    plan = make_plan(scene.shape[:2], (h, w))

    def score(index: int) -> None:
        found = cv2.matchTemplate(scene[plan.inputs(index)], template, cv2.TM_CCOEFF_NORMED)
        scores[plan.outputs(index)] = found

    in_threads(score, plan.count)
    return scores
