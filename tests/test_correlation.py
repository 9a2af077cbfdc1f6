"""Exact score maps: against direct float64 sums, at the edges of what has a score."""

from __future__ import annotations

import itertools
import math
import os
import resource
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from matcher.correlation import Scene, score_map, sums, tiles
from matcher.correlation import scene as scenes
from matcher.correlation import workspace as workspaces
from matcher.correlation.kernel import make_kernel
from matcher.correlation.tiles import make_plan
from matcher.correlation.window_norms import WindowNorms
from matcher.correlation.workspace import Workspace, workspace

OPENCV = sums.opencv


def direct_scores(template, scene, mask=None):
    """Score every window by its own float64 sums, mean removed first."""
    template, scene = np.asarray(template, np.float64), np.asarray(scene, np.float64)
    weights = np.ones_like(template) if mask is None else np.asarray(mask, np.float64)
    weights = weights / weights.sum()
    pattern = template - (weights * template).sum()
    windows = sliding_window_view(scene, template.shape)
    windows = windows - np.einsum("ijkl,kl->ij", windows, weights)[..., None, None]
    products = np.einsum("ijkl,kl->ij", windows, weights * pattern)
    energy = np.einsum("ijkl,ijkl,kl->ij", windows, windows, weights)
    norm = np.sqrt(energy * (weights * pattern**2).sum())
    return np.divide(products, norm, out=np.zeros_like(norm), where=energy > 1e-20)


@pytest.fixture(params=["opencv", "scipy"], autouse=True)
def sums_by(request, monkeypatch):  # NCC-24
    if request.param == "opencv":
        pytest.importorskip("cv2")
    else:
        monkeypatch.setattr(sums, "opencv", lambda: None)
    return request.param


def test_scores_equal_direct_sums(texture):
    scene = texture(120, 150)
    template = scene[30:62, 40:75]

    scores = score_map(template, scene)

    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, direct_scores(template, scene), atol=2e-6)


def test_inverted_template_scores_minus_one(texture):
    scene = texture(60, 80).astype(np.float32)

    scores = score_map(-scene[10:30, 20:50], scene)

    assert scores[10, 20] == pytest.approx(-1, abs=1e-6)


@pytest.mark.parametrize("template", [np.full((10, 10), 64, np.uint8), np.full((10, 10), 64.1)])
def test_flat_template_scores_zero_everywhere(texture, template):  # NCC-01
    for dtype in (template.dtype, np.float32):
        assert make_kernel(template.astype(dtype)).flat
        assert not score_map(template.astype(dtype), texture(40, 50)).any()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("level", [0, 64.1, 200, 255])
def test_flat_windows_score_zero(texture, dtype, level):  # NCC-02
    scene = texture(300, 300).astype(dtype)
    template = scene[230:246, 230:246].copy()
    scene[50:200, 50:200] = dtype(level)

    scores = score_map(template, scene)

    assert np.abs(scores[50:185, 50:185]).max() <= 1e-6
    assert np.unravel_index(scores.argmax(), scores.shape) == (230, 230)
    assert scores.max() == pytest.approx(1, abs=1e-6)
    assert np.abs(scores).max() <= 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-5)])
def test_large_offset_and_small_contrast(dtype, tolerance):  # NCC-03, NCC-24
    for offset in (1e4, 1e5):
        scene = (offset + np.random.default_rng(0).normal(size=(300, 400))).astype(dtype)
        template = scene[100:116, 300:316]

        scores = score_map(template, scene)

        assert np.unravel_index(scores.argmax(), scores.shape) == (100, 300)
        np.testing.assert_allclose(scores, direct_scores(template, scene), atol=tolerance)


def test_step_of_1e5_and_faint_texture_beside_it(texture):
    scene = texture(100, 200).astype(np.float32)
    scene[:, 100:] += 1e5
    scene[:, :100] *= 0.01
    template = scene[20:40, 30:60]

    scores = score_map(template, scene)

    np.testing.assert_allclose(scores, direct_scores(template, scene), atol=1e-4)


def test_large_image_equals_direct_sums_at_sampled_places(texture):
    scene = (1e5 + texture(2000, 3000).astype(np.float64)).astype(np.float32)
    template = scene[700:731, 1200:1240]

    scores = score_map(template, scene)

    generator = np.random.default_rng(1)
    for y, x in zip(
        generator.integers(0, 1969, 200), generator.integers(0, 2960, 200), strict=True
    ):
        window = scene[y : y + 31, x : x + 40].astype(np.float64)
        wanted = np.corrcoef(window.ravel(), template.astype(np.float64).ravel())[0, 1]
        assert scores[y, x] == pytest.approx(wanted, abs=1e-4)
    assert np.unravel_index(scores.argmax(), scores.shape) == (700, 1200)


def test_crop_and_tile_do_not_change_scores(texture):
    scene = texture(200, 300)
    template = scene[90:120, 90:130]

    whole = score_map(template, scene)

    np.testing.assert_allclose(score_map(template, scene[50:, 70:]), whole[50:, 70:], atol=3e-6)
    tiled = score_map(template, np.tile(scene, (2, 2)))
    np.testing.assert_allclose(tiled[: whole.shape[0], : whole.shape[1]], whole, atol=3e-6)


@pytest.mark.parametrize("size", [(5, 5), (5, 50), (50, 5)])
def test_oversize_template_is_refused_with_both_sizes(size):  # NCC-04
    with pytest.raises(
        ValueError, match=f"9 x 9 pixels does not fit a scene of {size[0]} x {size[1]}"
    ):
        score_map(np.eye(9), np.random.default_rng(0).random(size))


def test_template_of_the_size_of_the_scene(texture):  # NCC-05
    scene = texture(32, 32)

    for mask in (None, np.ones((32, 32))):
        scores = score_map(scene, scene, mask)
        assert scores.shape == (1, 1)
        assert scores[0, 0] == pytest.approx(1, abs=1e-6)
    assert score_map(np.ones((3, 3)), np.ones((3, 3)))[0, 0] == 0


@pytest.mark.parametrize("size", [(10, 10), (37, 50), (40, 47), (1, 50), (40, 1), (39, 49)])
def test_full_mask_changes_nothing(texture, size):  # NCC-06
    scene = texture(40, 50)
    scene[10:35, 15:40] = 77
    template = scene[: size[0], : size[1]]
    plain = score_map(template, scene)

    for value, dtype in ((1, np.uint8), (255, np.uint8), (1, np.bool_), (1, np.float32)):
        masked = score_map(template, scene, np.full(size, value, dtype))
        np.testing.assert_allclose(masked, plain, atol=1e-5)


def test_general_masks_equal_direct_sums(texture):
    scene = texture(90, 110)
    template = scene[20:50, 30:65]
    mask = np.random.default_rng(2).random(template.shape)

    scores = score_map(template, scene, mask)

    np.testing.assert_allclose(scores, direct_scores(template, scene, mask), atol=1e-6)


def test_template_flat_under_its_mask_is_flat():  # NCC-07
    scene = np.full((30, 30), 7.0)
    scene[5:15, 5:15] = np.add.outer(np.arange(10), np.arange(10))
    template, mask = np.full((6, 6), 5.0), np.ones((6, 6))
    template[2, 3], mask[2, 3] = 9, 0

    assert make_kernel(template, mask).flat
    assert not score_map(template, scene, mask).any()


def test_mask_values_are_weights_of_any_range(texture):  # NCC-08
    generator = np.random.default_rng(3)
    alpha = generator.choice(np.array([0, 64, 128, 255], np.uint8), (20, 20))
    template = texture(20, 20)
    scene = generator.integers(0, 256, (80, 80)).astype(np.float64)
    scene[30:50, 40:60] += alpha / 255 * (template - scene[30:50, 40:60])

    scores = score_map(template, scene, alpha)
    other = np.where(alpha > 0, template, generator.integers(0, 256, (20, 20)))

    for mask in (alpha / 255, alpha.astype(np.float32)):
        np.testing.assert_allclose(score_map(template, scene, mask), scores, atol=1e-6)
    np.testing.assert_allclose(score_map(other, scene, alpha), scores, atol=1e-6)
    switched = score_map(template, scene, alpha > 0)
    np.testing.assert_allclose(switched, direct_scores(template, scene, alpha > 0), atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((8, 9)), "mask leaves no pixel of the template"),
        (np.ones((9, 8)), r"mask must be \(8, 9\) like the template, not \(9, 8\)"),
        (-np.ones((8, 9)), "mask must hold weights of 0 or more"),
        (np.full((8, 9), np.nan), "mask must hold weights of 0 or more"),
    ],
)
def test_unusable_masks_are_refused(texture, mask, message):
    with pytest.raises(ValueError, match=message):
        score_map(texture(8, 9), texture(20, 20), mask)


@pytest.mark.parametrize("width", [59, 60, 61, 64])
def test_masked_scores_over_black_areas_stay_in_range(texture, width):  # NCC-09
    scene = np.zeros((60, width))
    scene[20:30, 20:30] = texture(10, 10)
    mask = np.zeros((10, 10))
    mask[2:8, 2:8] = 1

    scores = score_map(scene[20:30, 20:30], scene, mask)

    assert np.isfinite(scores).all()
    assert np.abs(scores).max() <= 1 + 1e-6
    assert scores[20, 20] == pytest.approx(1, abs=1e-6)
    assert np.abs(scores[32:]).max() == 0
    assert np.abs(scores[:10]).max() == 0


def test_exact_copies_score_one():  # NCC-10
    for seed in range(20):
        scene = np.random.default_rng(seed).integers(0, 256, (120, 160)).astype(np.uint8)

        assert score_map(scene[30:50, 40:64], scene).max() >= 1 - 1e-6


def test_colour_is_scored_jointly(texture):  # NCC-17
    pattern = texture(40, 40).astype(np.float64)
    scene = np.zeros((60, 120, 3))
    scene[10:50, 10:50] = (0.3 * pattern)[..., None]
    scene[10:50, 70:110, 0] = pattern

    scores = score_map(scene[10:50, 70:110], scene)

    assert scores[10, 70] == pytest.approx(1, abs=1e-6)
    assert scores[10, 10] == pytest.approx(1 / np.sqrt(3), abs=1e-4)


def test_channels_must_agree(texture):
    with pytest.raises(ValueError, match="the template has 1 channels, the scene 3"):
        score_map(texture(8, 8), np.dstack([texture(20, 20)] * 3))


@pytest.mark.parametrize("shape", [(0, 5), (4,), (2, 3, 4, 5)])
def test_arrays_that_are_no_pictures_are_refused(shape):
    with pytest.raises(ValueError, match="pixels must be"):
        score_map(np.zeros(shape), np.zeros((9, 9)))


def test_dtypes_agree(texture):  # NCC-18
    values = texture(64, 64) // 2
    dtypes = [np.uint8, np.uint16, np.int16, np.int32, np.float16, np.float32, np.float64]
    wanted = direct_scores(values[20:36, 30:46], values)

    for first, second in itertools.product(dtypes, dtypes):
        scores = score_map(values[20:36, 30:46].astype(first), values.astype(second))
        np.testing.assert_allclose(scores, wanted, atol=1e-5)
    negative = values.astype(np.int16) - 120
    np.testing.assert_allclose(score_map(negative[20:36, 30:46], negative), wanted, atol=1e-5)


def test_bits_score_like_numbers(texture):  # NCC-18
    bits = texture(64, 64) > 127
    numbers = bits.astype(np.float64)
    wanted = direct_scores(numbers[20:36, 30:46], numbers)

    for first, second in itertools.product([np.bool_, np.uint8, np.float32], repeat=2):
        scores = score_map(bits[20:36, 30:46].astype(first), bits.astype(second))
        np.testing.assert_allclose(scores, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32, np.float64])
def test_bytes_score_alike_however_they_are_stored(texture, kind):  # NCC-18
    scene = texture(90, 120)

    scores = score_map(scene[20:36, 30:46], scene.astype(kind))

    np.testing.assert_array_equal(scores, score_map(scene[20:36, 30:46], scene))


def test_one_pixel_that_is_no_byte_counts(texture):
    scene = texture(90, 120).astype(np.float32)
    for value in (300.0, -1.0, 100.5):
        scene[45, 61] = value  # off the pixels that are looked at first
        template = scene[40:52, 55:70]

        np.testing.assert_allclose(
            score_map(template, scene), direct_scores(template, scene), atol=1e-5
        )


def test_norms_are_kept_from_the_second_template_of_a_size_on(texture, monkeypatch):  # NCC-19
    made = []

    class Counted(WindowNorms):
        def __init__(self, *given):
            made.append(self)
            super().__init__(*given)

    monkeypatch.setattr(scenes, "WindowNorms", Counted)
    pixels = texture(100, 100)
    scene = Scene(pixels)

    counts = []
    for corner in range(4):
        scene.score_map(make_kernel(pixels[corner : corner + 20, :20]))
        counts.append(len(made))

    assert counts == [1, 2, 2, 2]


def test_memory_of_a_workspace_is_used_again():
    space = Workspace()

    first = space.array("sums", (4, 5), np.float64)
    other = space.array("squares", (4, 5), np.float64)
    again = space.array("sums", (3, 2), np.int32)

    assert np.shares_memory(first, again)
    assert not np.shares_memory(first, other)
    assert (again.shape, again.dtype) == ((3, 2), np.int32)
    assert space.size == 2 * 4 * 5 * 8
    assert space.array("sums", (9, 9), np.float64).shape == (9, 9)
    assert space.size == (4 * 5 + 9 * 9) * 8


def test_a_workspace_is_lent_to_one_at_a_time(monkeypatch):
    monkeypatch.setattr(workspaces, "_idle", [])
    monkeypatch.setattr(workspaces, "_MOST", 1000)

    with workspace() as outer, workspace() as inner:
        assert outer is not inner
        outer.array("sums", (800,), np.uint8)
        inner.array("sums", (300,), np.uint8)

    with workspace() as one, workspace() as two:
        assert one is inner  # which came back first; both were more than is kept
        assert two is not outer


def test_many_templates_share_a_scene(texture):  # NCC-19
    pixels = texture(180, 240)
    scene = Scene(pixels)

    for size in (32, 32, 40, 64, 33, 32):
        template = pixels[10 : 10 + size, 20 : 20 + size]
        one = score_map(template, pixels)
        np.testing.assert_allclose(scene.score_map(make_kernel(template)), one, atol=1e-6)


@pytest.mark.parametrize("size", [(16, 24), (190, 200)])  # a box filter overflows under the second
def test_norms_of_bytes_are_those_of_windows(texture, size) -> None:
    picture = texture(260, 250) // 8 + 224  # bright: the largest sums of squares

    norms = WindowNorms(picture[None], size, Workspace())[:]

    windows = sliding_window_view(picture.astype(np.float64), size)
    for row, column in ((0, 0), (70, 50), (31, 7)):
        expected = windows[row, column].std() * math.sqrt(size[0] * size[1])
        assert norms[row, column] == pytest.approx(expected, rel=1e-6)
    assert norms.shape == windows.shape[:2]


def test_large_scene_keeps_memory_bounded(texture):  # NCC-21
    scene = np.tile(texture(750, 1000), (4, 4))
    scene[1500:2012, 2100:2612] = texture(512, 512, seed=9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    scores = score_map(scene[1500:2012, 2100:2612], scene)

    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert scores[1500, 2100] == pytest.approx(1, abs=1e-5)
    assert scores.argmax() == 1500 * scores.shape[1] + 2100
    assert grown * 1024 <= 10 * scene.size * 4


def test_faint_texture_amid_strong_is_scored_exactly(texture):
    scene = texture(160, 200).astype(np.float32) * 1e5
    scene[60:110, 70:130] = 1e7 + texture(50, 60, 1)
    template = scene[75:91, 90:108].copy()

    scores = score_map(template, scene)

    np.testing.assert_allclose(scores, direct_scores(template, scene), atol=1e-5)
    assert scores[75, 90] == pytest.approx(1, abs=1e-6)


def test_sums_of_very_large_templates_do_not_overflow():
    scene = np.random.default_rng(0).integers(210, 256, (2010, 5010)).astype(np.uint8)

    scores = score_map(scene[5:2005, 5:5005], scene)

    assert scores[5, 5] == pytest.approx(1, abs=1e-5)
    assert np.delete(scores.ravel(), 5 * scores.shape[1] + 5).max() < 0.1


@pytest.mark.parametrize("size", [1e-150, 1e-46, 1e39, 1e150])
@pytest.mark.parametrize("hole", [False, True])
def test_any_range_of_float64_has_scores(texture, size, hole):
    small = texture(60, 80) / 255.0
    scene = small * size
    if hole:
        scene[50, 70] = np.nan

    scores = score_map(scene[10:30, 20:44], scene)

    np.testing.assert_allclose(scores[:25], score_map(small[10:30, 20:44], small)[:25], atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_pixel_that_is_not_finite_touches_only_its_windows(texture, value):  # NCC-22
    clean = texture(300, 300).astype(np.float32)
    scene = clean.copy()
    scene[5, 5] = value
    template = clean[150:211, 100:161]

    scores = score_map(template, scene)

    assert np.isfinite(scores).all()
    plain = score_map(template, clean)
    np.testing.assert_allclose(scores[6:], plain[6:], atol=1e-5)
    np.testing.assert_allclose(scores[:, 6:], plain[:, 6:], atol=1e-5)
    assert np.unravel_index(scores.argmax(), scores.shape) == (150, 100)


def test_invalid_pixels_count_as_masked(texture):
    scene = texture(80, 90).astype(np.float64)
    template = scene[20:50, 30:65].copy()
    scene[25:35, 40:45] = np.nan
    mask = np.isfinite(scene[20:50, 30:65])

    scores = score_map(template, scene)

    clean = np.where(np.isnan(scene), 0, scene)
    wanted = direct_scores(template, clean[20:50, 30:65], mask)[0, 0]
    assert wanted == pytest.approx(1)
    assert scores[20, 30] == pytest.approx(wanted, abs=1e-6)
    shifted = np.isfinite(scene[22:52, 28:63])
    wanted = direct_scores(template, clean[22:52, 28:63], shifted)[0, 0]
    assert scores[22, 28] == pytest.approx(wanted, abs=1e-6)


def test_windows_that_see_little_score_zero(texture):
    scene = texture(60, 60).astype(np.float64)
    template = scene[5:25, 5:25].copy()
    scene[:, 30:] = np.nan

    scores = score_map(template, scene)

    assert not scores[:, 21:].any()
    assert scores[:, 20].any()


def test_scene_without_valid_pixels_scores_zero(texture):
    assert not score_map(texture(8, 8), np.full((20, 20), np.nan)).any()


def test_plans_cover_every_score_once():
    for scene, template in itertools.product(
        [(7, 300), (240, 320), (1080, 1920)], [(3, 5), (7, 64)]
    ):
        plan = make_plan(scene, template)
        outs = scene[0] - template[0] + 1, scene[1] - template[1] + 1
        seen = np.zeros(outs, np.int64)
        for index in range(plan.count):
            places, pixels = plan.outputs(index), plan.inputs(index)
            seen[places] += 1
            assert all(
                pixel.stop - pixel.start == place.stop - place.start + side - 1
                for place, pixel, side in zip(places, pixels, template, strict=True)
            )
        assert (seen == 1).all()


def test_float32_rounding_stays_within_the_bound():
    natural = np.abs(np.cumsum(np.random.default_rng(5).normal(size=(400, 500)), axis=1))
    natural[:, 250:] = natural[:, 250:] * 0.05 + 40
    template = natural[100:140, 300:350]

    scores = score_map(template.astype(np.float32), natural.astype(np.float32))

    single = natural.astype(np.float32)
    wanted = direct_scores(single[100:140, 300:350], single[:, 200:])
    np.testing.assert_allclose(scores[:, 200:], wanted, atol=1e-5)


def test_opencv_that_cannot_be_imported_is_done_without(monkeypatch):
    def broken(name):
        raise ImportError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(sums.importlib, "import_module", broken)

    assert OPENCV.__wrapped__() is None


def test_a_task_that_fails_in_a_thread_says_so():
    def task(number):
        if number == 2:
            raise ValueError("no tile 2")

    for workers in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiles, "_threads", lambda workers=workers: workers)
            with pytest.raises(ValueError, match="no tile 2"):
                tiles.in_threads(task, 4)


@pytest.mark.parametrize(("threads", "count"), [(1, 1), (2, 2)])
def test_a_scene_is_halved_where_a_second_thread_is_worth_its_start(monkeypatch, threads, count):
    monkeypatch.setattr(tiles, "_threads", lambda: threads)

    assert make_plan((540, 600), (16, 16)).count == count
    assert make_plan((200, 300), (16, 16)).count == 1


def test_tasks_of_a_task_stay_in_its_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    both, seen = threading.Barrier(2, timeout=10), {}

    def task(number):
        both.wait()  # both threads are at it
        seen[number] = []
        tiles.in_threads(lambda _: tiles.in_threads(partial(note, number), 2), 3)

    def note(number, _):
        seen[number].append(threading.get_ident())

    tiles.in_threads(task, 2)

    own, other = (set(threads) for threads in seen.values())
    assert len(own) == len(other) == 1
    assert own != other
    assert tiles._threads() == 2


@pytest.mark.parametrize(("wanted", "workers"), [("3", 3), ("0", None), ("2,1", None), ("", None)])
def test_without_torch_threads_are_those_of_openmp(monkeypatch, wanted, workers):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)

    assert tiles._threads() == (workers or os.cpu_count())


def test_results_do_not_depend_on_threads(texture):
    scene = texture(200, 260)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = score_map(scene[:40, :40], scene)
        torch.set_num_threads(2)
        np.testing.assert_allclose(score_map(scene[:40, :40], scene), one, atol=1e-6)
    finally:
        torch.set_num_threads(before)
