"""The published baselines: how keypoints are assigned, and parity with other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from scipy.spatial.distance import cdist

from matcher import methods, weights
from matcher.methods._options import split
from matcher.methods._sparse import Nearest, NearestOptions
from matcher.types import Description


def _description(descriptors, points=None, size=(480, 640), **fields):
    count = len(descriptors)
    if points is None:
        points = np.random.default_rng(count).uniform(0, 400, (count, 2))
    return Description(
        "toy",
        np.zeros(size, np.float32),
        None,
        np.asarray(points, np.float32).reshape(count, 2),
        np.ones(count, np.float32),
        np.asarray(descriptors),
        **fields,
    )


def _unit(count, channels=64, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, channels)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _built(name, **options):
    try:
        return methods.build(name, device="cpu", **options)
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(str(error))


# Nearest descriptors


def test_mutual_matches_equal_scipys_distances() -> None:
    descriptors0, descriptors1 = _unit(70, seed=1), _unit(50, seed=2)
    descriptors1[:30] = descriptors0[10:40] + 0.02 * _unit(30, seed=3)

    found = Nearest(NearestOptions())(_description(descriptors0), _description(descriptors1))

    distance = cdist(descriptors0, descriptors1)
    forward, backward = distance.argmin(axis=1), distance.argmin(axis=0)
    rows = np.flatnonzero(backward[forward] == np.arange(70))
    np.testing.assert_array_equal(found.indices, np.stack([rows, forward[rows]], axis=1))


def test_the_ratio_test_equals_a_loop_over_distances() -> None:
    descriptors0, descriptors1 = _unit(60, 8, seed=1), _unit(60, 8, seed=2)
    descriptors1[:40] = descriptors0[:40] + 0.3 * _unit(40, 8, seed=3)
    descriptors1 /= np.linalg.norm(descriptors1, axis=1, keepdims=True)

    found = Nearest(NearestOptions(ratio=0.8))(
        _description(descriptors0), _description(descriptors1)
    )

    distance = cdist(descriptors0, descriptors1)
    expected = []
    for row in range(60):
        column = distance[row].argmin()
        along, down = np.sort(distance[row]), np.sort(distance[:, column])
        ratio = max(along[0] / along[1], down[0] / down[1])
        if distance[:, column].argmin() == row and ratio < 0.8:
            expected.append((row, column, 1 - ratio))
    np.testing.assert_array_equal(found.indices, np.array(expected)[:, :2])
    np.testing.assert_allclose(found.scores, np.array(expected)[:, 2], atol=1e-5)


def test_many_keypoints_are_compared_in_blocks(monkeypatch) -> None:
    pair = _description(_unit(50, seed=1)), _description(_unit(40, seed=2))
    whole = Nearest(NearestOptions(ratio=0.99, exclusion=30))(*pair)

    monkeypatch.setattr("matcher.methods._sparse._BLOCK", 130)
    blocks = Nearest(NearestOptions(ratio=0.99, exclusion=30))(*pair)

    np.testing.assert_array_equal(blocks.indices, whole.indices)
    np.testing.assert_allclose(blocks.scores, whole.scores, atol=1e-6)


@pytest.mark.parametrize(("count0", "count1"), [(1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("ratio", [0.8, 1.0])
def test_a_keypoint_without_rival_matches(count0, count1, ratio) -> None:  # KPT-02
    descriptors = _unit(5)

    found = Nearest(NearestOptions(ratio=ratio))(
        _description(descriptors[:count0]), _description(descriptors[:count1])
    )

    assert found.indices.tolist() == [[0, 0]]
    assert found.scores[0] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("counts", [(0, 5), (5, 0), (0, 0)])
def test_no_keypoints_give_no_matches(counts) -> None:  # KPT-01
    pair = tuple(_description(_unit(count)) for count in counts)
    (found,) = _built("xfeat").match([pair])

    assert found.points0.shape == found.points1.shape == (0, 2)
    assert found.scores.shape == (0,)


def test_close_duplicates_are_no_rivals_where_they_are_excluded() -> None:  # KPT-10
    queries = _unit(3)
    twins = np.repeat(queries, 2, axis=0) + 0.01 * _unit(6, seed=5)
    others = np.concatenate([twins, _unit(3, seed=9)])
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    places = [(100, 100), (102, 100), (200, 100), (202, 100), (300, 100), (302, 100)]
    description1 = _description(others, [*places, (100, 300), (200, 300), (300, 300)])
    description0 = _description(queries, [(50, 50), (150, 50), (250, 50)])

    without = Nearest(NearestOptions(ratio=0.8))(description0, description1)
    excluded = Nearest(NearestOptions(ratio=0.8, exclusion=4))(description0, description1)

    assert len(without.indices) == 0
    assert excluded.indices[:, 0].tolist() == [0, 1, 2]
    assert (excluded.indices[:, 1] // 2).tolist() == [0, 1, 2]


def test_a_least_cosine_is_kept() -> None:
    descriptors0 = _unit(40, 8, seed=1)
    descriptors1 = _unit(40, 8, seed=2)

    found = Nearest(NearestOptions(min_cosine=0.7))(
        _description(descriptors0), _description(descriptors1)
    )

    cosines = (descriptors0 @ descriptors1.T)[tuple(found.indices.T)]
    assert len(found.scores) > 0
    np.testing.assert_allclose(found.scores, cosines, atol=1e-6)
    assert (cosines >= 0.7).all()


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_descriptors_of_other_precision_are_cast(kind) -> None:  # ATT-09
    points = np.random.default_rng(0).uniform(0, 400, (30, 2))
    other = _description(_unit(30).astype(kind), points)
    exact = _description(other.descriptors.astype(np.float32), points)

    for method in (_built("xfeat"), _built("xfeat-lighterglue")):
        found, expected = method.match([(other, other), (exact, exact)])

        np.testing.assert_array_equal(found.indices, expected.indices)
        assert found.points0.dtype == found.scores.dtype == np.float32


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ratio must be in \(0, 1\], not 1.2"):
        methods.build("xfeat", ratio=1.2)
    with pytest.raises(ValueError, match="exclusion must be at least 0 pixels, not -1"):
        methods.build("xfeat", exclusion=-1)


def test_options_go_to_the_part_that_has_them() -> None:
    own, rest = split(NearestOptions, {"ratio": 0.7, "border": 3}, min_cosine=0.5)

    assert own == NearestOptions(ratio=0.7, min_cosine=0.5)
    assert rest == {"border": 3}


# Descriptions at the door


def test_descriptors_of_another_method_are_refused() -> None:  # KPT-11
    pair = _description(_unit(5)), _description(_unit(5, 128))

    with pytest.raises(ValueError, match=r"64 channels; description 1, made by toy, has 128"):
        _built("xfeat").match([pair])


@pytest.mark.parametrize("name", ["xfeat", "xfeat-lighterglue"])
def test_points_up_to_half_a_pixel_outside_are_taken(name) -> None:  # KPT-07
    points = [(-0.4, 5), (0, 50), (639.4, 90), (300, 479.4), (20, 20)]
    described = _description(_unit(5), points)

    (found,) = _built(name).match([(described, described)])

    assert np.isfinite(found.points0).all()
    assert np.isfinite(found.scores).all()


def test_points_farther_outside_are_named() -> None:  # KPT-07
    described = _description(_unit(3), [(5, 5), (640.2, 5), (7, 7)])

    with pytest.raises(ValueError, match=r"point 1 of description 0 at \(640.2, 5\) is outside"):
        _built("xfeat").match([(described, described)])


def test_cells_need_their_scales() -> None:
    described = _description(_unit(5))

    with pytest.raises(ValueError, match="xfeat-star needs the scales of its cells"):
        _built("xfeat-star", confidence=0.0).match([(described, described)])


# Local maps


def test_scales_and_angles_give_the_local_map(texture) -> None:
    image = texture(160, 160).astype(np.float32) / 255
    larger = zoom(np.rot90(image, -1), 1.5, order=3).clip(0, 1).astype(np.float32)
    sift = _built("sift")

    (found,) = sift.match([tuple(sift.describe([image, larger]))])

    expected = 1.5 * np.array([[0, -1], [1, 0]])  # clockwise on the screen
    assert len(found) > 20
    np.testing.assert_allclose(np.median(found.linear1_from_0, axis=0), expected, atol=0.1)
    centred0, centred1 = found.points0 - found.points0[0], found.points1 - found.points1[0]
    assert np.median(np.abs(centred0 @ expected.T - centred1)) < 0.5


def test_keypoints_without_angles_have_no_local_map(texture) -> None:
    image = texture(96, 96).astype(np.float32) / 255
    xfeat = _built("xfeat")

    (found,) = xfeat.match([tuple(xfeat.describe([image, image]))])

    assert found.linear1_from_0 is None


# Parity


def test_lighterglue_matches_as_kornias_own_wrapper(texture) -> None:
    kornia = pytest.importorskip("kornia")
    method = _built("xfeat-lighterglue", filter_threshold=0.01, width_confidence=-1)
    images = [texture(160, 192, seed).astype(np.float32) / 255 for seed in (0, 0)]
    images[1] = np.roll(images[1], 9, axis=1)
    description0, description1 = method.describe(images)
    glue = kornia.feature.LightGlue(
        None,
        input_dim=64,
        descriptor_dim=96,
        n_layers=6,
        num_heads=1,
        depth_confidence=-1,
        width_confidence=-1,
        filter_threshold=0.01,
    ).eval()
    glue.load_state_dict(weights.state_dict("lighterglue"), strict=False)
    sides = {
        f"image{number}": {
            "keypoints": torch.from_numpy(each.points)[None],
            "descriptors": torch.from_numpy(each.descriptors)[None],
            "image_size": torch.tensor([[192, 160]]),
        }
        for number, each in enumerate((description0, description1))
    }

    with torch.inference_mode():
        partners = glue(sides)["matches0"][0].numpy()
    (found,) = method.match([(description0, description1)])

    ours, _ = found.partners(len(description0), len(description1))
    assert len(found) > 50
    np.testing.assert_array_equal(ours, partners)


def test_star_matches_are_placed_between_cells(texture) -> None:
    image = texture(192, 224).astype(np.float32) / 255
    star = _built("xfeat-star")
    pair = tuple(star.describe([image, np.roll(image, 3, axis=1)]))

    (found,) = star.match([pair])

    moved = found.points0 - pair[0].points[found.indices[:, 0]]
    shift = found.points1 - found.points0
    inner = (found.points1[:, 0] > 24) & (found.points1[:, 0] < 200)
    assert len(found) > 100
    assert np.abs(moved).max() > 1
    assert np.median(np.abs(shift[inner] - [3, 0])) < 1


def test_star_splits_its_cells_between_scales(texture) -> None:
    image = texture(192, 224).astype(np.float32) / 255
    (described,) = _built("xfeat-star", max_keypoints=200).describe([image])

    sides, counts = np.unique(described.scales * 2, return_counts=True)

    np.testing.assert_allclose(sides, [8 / 1.3, 8 / 0.6], rtol=1e-5)
    assert counts.tolist() == [160, 40]


def test_weights_of_both_networks_come_from_the_users_folder(tmp_path, texture) -> None:
    pytest.importorskip("kornia")
    weights.save(weights.state_dict("xfeat"), tmp_path / "xfeat.safetensors")
    with pytest.raises(FileNotFoundError, match="no weights lighterglue in"):
        methods.build("xfeat-lighterglue", device="cpu", weights=tmp_path)

    weights.save(weights.state_dict("lighterglue"), tmp_path / "lighterglue.safetensors")
    method = methods.build("xfeat-lighterglue", device="cpu", weights=tmp_path)

    image = texture(96, 128).astype(np.float32) / 255
    assert not method.match([tuple(method.describe([image, image]))])[0].untrained


def test_corrected_offsets_are_right_on_average(texture) -> None:
    image = texture(192, 224, sigma=2.5).astype(np.float32) / 255
    errors = {}
    for corrected in (False, True):
        star = _built("xfeat-star", corrected=corrected)
        (found,) = star.match([tuple(star.describe([image, image]))])
        errors[corrected] = np.abs(np.median(found.points0 - found.points1, axis=0))

    assert (errors[True] < 0.5).all()
    assert (errors[True] < errors[False]).all()
