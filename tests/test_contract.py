"""What every method promises, whatever it is made of. A new method is tested here by its name."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from matcher import features, methods

NAMES = methods.names()
# Methods that treat both images alike. The others move points in one image only, or search in one
# direction.
SYMMETRIC = {"aliked-lightglue", "disk-lightglue", "orb", "sift", "superglue", "xfeat",
             "xfeat-lighterglue"}  # fmt: skip
WITHOUT_NETWORK = {"ncc", "orb", "sift"}


@pytest.fixture(scope="module", params=NAMES)
def method(request):
    """Each method as published; skipped by name where a package or its weights are missing."""
    return _built(request.param)


def _built(name, **options):
    try:
        return methods.build(name, device="cpu", **options)
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(f"{name}: {error}")


def _name(request):
    return request.node.callspec.params["method"]


def _picture(height, width, seed=0):
    """Make a picture with blobs of several sizes and corners."""
    rng = np.random.default_rng(seed)
    image = sum(gaussian_filter(rng.normal(size=(height, width)), sigma) * sigma
                for sigma in (1.5, 3, 8))  # fmt: skip
    image = (image - image.min()) / np.ptp(image)
    for _ in range(height * width // 800):
        y, x, rows, columns = rng.integers(0, [height - 4, width - 4, 24, 24])
        image[y : y + rows + 4, x : x + columns + 4] *= rng.uniform(0.3, 1)
    return image.astype(np.float32)


def _pair(height=144, width=192, shift=16, seed=0):
    """Two crops of one picture: x of the first is x + shift of the second."""
    wide = _picture(height, width + shift, seed)
    return np.ascontiguousarray(wide[:, shift:]), np.ascontiguousarray(wide[:, :width])


def _match(method, image0, image1, masks=None):
    return method.match([tuple(method.describe([image0, image1], masks))])[0]


def _sorted(matches):
    table = np.concatenate([matches.points0, matches.points1], axis=1)
    return table[np.lexsort(np.round(table, 2).T)]


def _assert_same(matches, others, tolerance=0.02):
    """Expect the same matches; rounding may tip single ones over a threshold."""
    table, other = _sorted(matches), _sorted(others)
    if len(table) == len(other) and np.allclose(table, other, atol=tolerance):
        return
    distance = np.abs(table[:, None] - other).max(axis=2)
    same = (distance.min(axis=1, initial=np.inf) <= tolerance).sum()
    assert same >= 0.98 * max(len(table), len(other), 1)


def test_matches_are_inside_finite_and_best_first(method) -> None:
    image0, image1 = _pair()

    found = _match(method, image0, image1)

    assert len(found) > 5
    assert not found.untrained
    for points in (found.points0, found.points1):
        assert points.dtype == np.float32
        assert (points >= -0.5).all()
        assert (points <= [191.5, 143.5]).all()
    assert found.scores.dtype == np.float32
    assert found.scores.min() >= 0
    assert found.scores.max() <= 1
    assert (np.diff(found.scores) <= 0).all()


def test_most_matches_of_a_shifted_picture_are_right(method) -> None:
    image0, image1 = _pair()

    found = _match(method, image0, image1)

    error = np.abs(found.points1 - found.points0 - [16, 0]).max(axis=1)
    assert (error < 3).mean() > 0.8


def test_a_picture_matches_itself_in_place(method) -> None:  # ATT-10
    image, _ = _pair()

    found = _match(method, image, image)

    assert len(found) > 5
    assert (np.abs(found.points1 - found.points0).max(axis=1) < 1).mean() > 0.9


@pytest.mark.parametrize("level", [0, 127, 255])
def test_blank_images_have_no_matches_and_leave_others_alone(method, level) -> None:  # KPT-01
    image0, image1 = _pair()
    blank = np.full((64, 64), level / 255, np.float32)
    described = method.describe([image0, blank, image1, blank])

    pairs = [(0, 2), (0, 1), (1, 0), (1, 3)]
    found = method.match([(described[i], described[j]) for i, j in pairs])

    for matches in found[1:]:
        assert matches.points0.shape == matches.points1.shape == (0, 2)
        assert matches.scores.shape == (0,)
    _assert_same(found[0], _match(method, image0, image1))


def test_nothing_asked_gives_nothing(method) -> None:
    assert method.describe([]) == []
    assert method.match([]) == []


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (16, 16), (20, 300)])
def test_small_and_narrow_images_are_no_error(method, size) -> None:  # KPT-04
    image0, _ = _pair()
    small = np.random.default_rng(0).random(size, dtype=np.float32)

    found = _match(method, image0, small)

    assert (found.points1 <= [size[1] - 0.5, size[0] - 0.5]).all()


def test_a_batch_gives_what_single_calls_give(method) -> None:
    image0, image1 = _pair()
    image2, image3 = _pair(120, 150, 8, seed=1)  # of another size, and no multiple of 8

    described = method.describe([image0, image1, image2, image3])
    together = method.match([(described[0], described[1]), (described[2], described[3])])

    _assert_same(together[0], _match(method, image0, image1))
    _assert_same(together[1], _match(method, image2, image3))


def test_swapping_the_images_swaps_the_matches(method, request) -> None:
    if _name(request) not in SYMMETRIC:
        pytest.skip(f"{_name(request)} treats the two images unlike")
    image0, image1 = _pair()

    _assert_same(_match(method, image0, image1), _match(method, image1, image0).swapped())


def test_only_allowed_places_match(method) -> None:  # KPT-09
    image0, image1 = _pair()
    mask0, mask1 = np.zeros((144, 192), bool), np.ones((144, 192), bool)
    mask0[:, :96] = True
    mask1[:72] = False

    found = _match(method, image0, image1, [mask0, mask1])

    # methods that look for the place round a cell or a keypoint may leave a mask by half a cell
    assert len(found) > 0
    assert (found.points0[:, 0] < 96 + 4).all()
    assert (found.points1[:, 1] > 72 - 4).all()
    assert (found.points0[:, 0] < 96).mean() > 0.9
    assert (found.points1[:, 1] > 71).mean() > 0.9


def test_inputs_are_left_as_they_are(method) -> None:
    image0, image1 = _pair()
    mask = np.ones((144, 192), bool)
    before = image0.copy(), image1.copy(), mask.copy()
    for array in (image0, image1, mask):
        array.setflags(write=False)

    described = method.describe([image0, image1], [mask, None])
    kept = [each.points.copy() for each in described]
    method.match([tuple(described)])

    for array, copy in zip((image0, image1, mask), before, strict=True):
        np.testing.assert_array_equal(array, copy)
    for each, points in zip(described, kept, strict=True):
        np.testing.assert_array_equal(each.points, points)


def _backwards(array):
    """Lay the same numbers out in falling memory."""
    return None if array is None else array[::-1].copy()[::-1]


def test_the_layout_of_arrays_in_memory_does_not_matter(method) -> None:  # IMG-07
    image0, image1 = _pair()
    views = [image[::-1, ::-1] for image in (image0, image1)]
    mask = np.ones((144, 192), bool)
    mask[:, :50] = False
    described = method.describe([image0, image1])
    turned = [
        dataclasses.replace(
            each,
            **{name: _backwards(getattr(each, name))
               for name in ("points", "scores", "descriptors", "scales", "angles")},
        )
        for each in described
    ]  # fmt: skip

    found = _match(method, *views, [mask[:, ::-1], None])

    copies = [view.copy() for view in views]
    _assert_equal(found, _match(method, *copies, [mask[:, ::-1].copy(), None]))
    _assert_equal(*method.match([tuple(turned), tuple(described)]))


def _assert_equal(found, expected):
    for field in dataclasses.fields(expected):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_masks_of_another_size_are_stretched(method, request) -> None:  # KPT-09
    image0, image1 = _pair()
    mask = np.zeros((144, 192), bool)
    mask[:, 96:] = True

    half = _match(method, image0, image1, [mask[::2, ::2], None])

    assert len(half) > 0
    _assert_equal(half, _match(method, image0, image1, [mask, None]))


def test_indices_lead_to_the_points_that_they_name(method) -> None:  # ATT-02
    images = [*_pair(), _picture(64, 80, 3)]
    described = method.describe(images)
    pairs = [(described[i], described[j]) for i, j in ((2, 0), (0, 1), (1, 2))]

    for (description0, description1), found in zip(pairs, method.match(pairs), strict=True):
        if found.indices is None:
            pytest.skip("the method matches places, not listed points")
        away0 = found.points0 - description0.points[found.indices[:, 0]]
        away1 = found.points1 - description1.points[found.indices[:, 1]]
        # no place is farther from its keypoint than a cell of the coarser of XFeat*'s scales
        assert np.abs(away0).max(initial=0) < 8 / 0.6
        assert np.abs(away1).max(initial=0) < 8 / 0.6
        assert all(len(set(rows)) == len(rows) for rows in found.indices.T.tolist())


def _with_last_point(description, point):
    points = description.points.copy()
    points[-1] = point
    return dataclasses.replace(description, points=points)


def test_what_no_image_holds_is_refused_by_name(method, request) -> None:  # KPT-07, KPT-11
    if _name(request) == "loftr":
        pytest.skip("its tokens are cells of its own maps")
    described0, described1 = method.describe([*_pair()])
    last = len(described0) - 1
    wide = np.pad(described1.descriptors, ((0, 0), (0, 1)))
    edge = method.match([(_with_last_point(described0, (191.4, -0.4)), described1)])[0]

    for point in ((192, 5), (5, -0.6), (np.nan, 5)):
        with pytest.raises(ValueError, match=f"point {last} of description 0 at .* is outside its"):
            method.match([(_with_last_point(described0, point), described1)])
    with pytest.raises(ValueError, match=rf"description 1, made by .*, has {wide.shape[1]}$"):
        method.match([(described0, dataclasses.replace(described1, descriptors=wide))])
    assert np.isfinite(edge.points0).all()
    assert np.isfinite(edge.scores).all()


def test_tuples_will_do_and_generators_are_taken_or_refused(method) -> None:  # PKG-06
    images = _pair()
    described = method.describe(list(images))
    pairs = [tuple(described)]
    expected = method.match(pairs)[0]

    _assert_equal(method.match((tuple(method.describe(images, (None, None))),))[0], expected)
    with pytest.raises(TypeError, match="generator"):
        method.describe(image for image in images)
    with contextlib.suppress(TypeError):
        _assert_equal(method.match(pair for pair in pairs)[0], expected)


def test_colour_and_grey_are_taken(method) -> None:
    image0, image1 = _pair()
    colour = np.repeat(image0[:, :, None], 3, axis=2)

    described = method.describe([colour, image1])

    assert described[0].image.shape == (144, 192)
    assert len(method.match([tuple(described)])[0]) > 5


def test_the_score_map_points_to_the_match(method) -> None:
    image0, image1 = _pair()
    pair = tuple(method.describe([image0, image1]))
    found = method.match([pair])[0]
    x, y = (float(value) for value in found.points0[0])

    scores = method.score_map(pair, (x, y))

    assert scores.points1.shape == (len(scores.scores), 2)
    assert np.isfinite(scores.scores).all()
    assert scores.kind
    assert np.hypot(*(np.array(scores.best) - found.points1[0])) < 12
    if scores.grid is not None:
        assert scores.grid[0] * scores.grid[1] == len(scores.scores)


def test_a_saved_description_matches_as_before(method, tmp_path) -> None:  # KPT-11
    image0, image1 = _pair()
    described = method.describe([image0, image1])

    read = [features.load(features.save(each, tmp_path / "a.npz")) for each in described]

    before, after = method.match([tuple(described)])[0], method.match([tuple(read)])[0]
    for field in dataclasses.fields(before):
        np.testing.assert_array_equal(getattr(before, field.name), getattr(after, field.name))


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_option_is_named(name) -> None:
    _built(name)

    with pytest.raises(TypeError, match="treshold"):
        methods.build(name, device="cpu", treshold=0.5)


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_NETWORK))
def test_random_weights_mark_every_result(name) -> None:
    if name in {"aliked-lightglue", "disk-lightglue", "xfeat-lighterglue"}:
        pytest.importorskip("kornia")
    method = methods.build(name, device="cpu", weights=None)
    blank = np.zeros((64, 64), np.float32)

    described = method.describe([_picture(64, 64), blank])

    assert method.match([(described[0], described[0])])[0].untrained
    assert method.match([(described[0], described[1])])[0].untrained


def test_an_unknown_method_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no method 'nc'; there are .*sift"):
        methods.build("nc")
