"""Quick score maps of bytes: near the exact ones, and right where there is no contrast."""

from __future__ import annotations

import numpy as np
import pytest

from matcher.correlation import quick_score_map, score_map

pytest.importorskip("cv2")


@pytest.mark.parametrize("channels", [(), (3,)])
def test_quick_scores_are_near_the_exact_ones(texture, channels):
    scene = texture(700, 80 * (channels or (1,))[0]).reshape(700, 80, *channels)
    template = scene[300:320, 30:54] // 2 + 20

    quick = quick_score_map(template, scene)

    assert quick.shape == (681, 57)
    np.testing.assert_allclose(quick, score_map(template, scene), atol=1e-3)


def test_quick_scores_of_flat_windows_are_zero(texture):
    scene = np.full((60, 60), 200, np.uint8)
    scene[20:36, 20:36] = texture(16, 16)

    quick = quick_score_map(texture(16, 16), scene)

    assert quick[20, 20] == pytest.approx(1, abs=1e-4)
    assert quick[:4].max() == quick[:4].min() == 0
