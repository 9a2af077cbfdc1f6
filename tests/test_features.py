"""Keypoint front ends: what every one promises, and each one's own numbers."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from matcher import features, weights
from matcher.features._choice import Choice
from matcher.nn import xfeat
from matcher.nn.peaks import below_pixel, highest_near, strongest_nearby
from matcher.nn.sampling import sample
from matcher.types import Description

NAMES = features.names()


@pytest.fixture(scope="module")
def front_end():
    """Build a front end once; skip where a package or weights are missing."""
    built = {}

    def get(name, **options):
        key = (name, *sorted(options.items()))
        if key not in built:
            try:
                built[key] = features.build(name, device="cpu", **options)
            except (ImportError, FileNotFoundError) as error:
                pytest.skip(str(error))
        return built[key]

    return get


def _image(texture, height, width, seed=0):
    """Make a picture with both blobs and corners: smoothed noise, with boxes over it."""
    image = texture(height, width, seed).astype(np.float32) / 255
    rng = np.random.default_rng(seed)
    for _ in range(height * width // 600):
        y, x = rng.integers(0, height - 4), rng.integers(0, width - 4)
        rows, columns = rng.integers(4, 24, 2)
        image[y : y + rows, x : x + columns] *= rng.uniform(0.2, 1)
    return image


def _equal(keypoints, others, tolerance=1e-5):
    assert len(keypoints) == len(others)
    np.testing.assert_allclose(keypoints.points, others.points, atol=1e-3)
    np.testing.assert_allclose(keypoints.descriptors, others.descriptors, atol=tolerance)
    np.testing.assert_allclose(keypoints.scores, others.scores, atol=tolerance)


# Every front end


@pytest.mark.parametrize("name", NAMES)
def test_keypoints_lie_inside_best_first_with_scores_of_0_to_1(name, front_end, texture) -> None:
    image = _image(texture, 123, 157)

    found = front_end(name).detect([image])[0]

    assert len(found) > 10
    assert found.points.dtype == found.scores.dtype == found.descriptors.dtype == np.float32
    assert found.descriptors.shape == (len(found), front_end(name).channels)
    assert (found.points >= 0).all()
    assert (found.points <= [156, 122]).all()
    assert (np.diff(found.scores) <= 0).all()
    assert found.scores.min() >= 0
    assert found.scores.max() <= 1
    np.testing.assert_allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", [0, 90, 127, 255])
def test_a_uniform_image_has_no_keypoints(name, level, front_end) -> None:  # KPT-01, 03, 05
    for height, width in ((64, 64), (120, 160)):
        image = np.full((height, width), level / 255, np.float32)

        found = front_end(name).detect([image])[0]

        assert found.points.shape == (0, 2)
        assert found.scores.shape == (0,)
        assert found.descriptors.shape == (0, front_end(name).channels)
        assert found.descriptors.dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_a_ramp_has_no_keypoints_and_noise_few(name, front_end) -> None:  # KPT-03
    ramp = np.tile(np.linspace(0, 1, 640, dtype=np.float32), (160, 1))
    noise = np.random.default_rng(0).normal(127, 1, (160, 640)).round() / 255

    on_ramp, on_noise = front_end(name).detect([ramp, noise.astype(np.float32)])

    assert len(on_ramp) == 0
    assert len(on_noise) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_no_keypoint_lies_in_the_border_or_the_padding(name, front_end, texture) -> None:  # KPT-04
    image = _image(texture, 123, 157)

    points = front_end(name, max_keypoints=2048, border=4).detect([image])[0].points

    assert (points >= 4).all()
    assert (points < [157 - 4, 123 - 4]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 7, 8, 16])
def test_tiny_images_give_an_empty_result(name, size, front_end) -> None:  # KPT-04
    image = np.random.default_rng(0).random((size, size), dtype=np.float32)

    assert len(front_end(name, border=8).detect([image])[0]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_only_allowed_places_have_keypoints_and_the_best_are_counted_there(
    name, front_end, texture
) -> None:  # KPT-09
    image = _image(texture, 160, 224)
    mask = np.zeros((160, 224), bool)
    mask[:, 112:] = True
    half = mask[::2, ::2]

    everything = front_end(name, max_keypoints=10_000).detect([image])[0]
    masked = front_end(name, max_keypoints=20).detect([image], [mask])[0]
    halved = front_end(name, max_keypoints=20).detect([image], [half])[0]

    allowed = everything.points[np.rint(everything.points[:, 0]) >= 112]
    assert (np.rint(masked.points[:, 0]) >= 112).all()
    assert len(masked) == min(20, len(allowed))
    np.testing.assert_allclose(halved.points, masked.points)
    nearest = np.abs(masked.points[:, None] - everything.points).sum(axis=2).min(axis=1)
    assert nearest.max() < 1e-3  # a mask makes no new keypoints at its edge


@pytest.mark.parametrize("name", NAMES)
def test_as_many_keypoints_as_exist_at_most(name, front_end, texture) -> None:  # KPT-12
    image = _image(texture, 120, 160)

    everything = front_end(name, max_keypoints=None).detect([image])[0]
    more = front_end(name, max_keypoints=100_000).detect([image])[0]
    few = front_end(name, max_keypoints=7).detect([image])[0]
    none = front_end(name, max_keypoints=0).detect([image])[0]

    assert len(more) == len(everything) > 7
    assert len(few) == 7
    assert len(none) == 0
    assert none.descriptors.shape == (0, front_end(name).channels)
    np.testing.assert_array_equal(few.points, everything.points[:7])


@pytest.mark.parametrize("name", NAMES)
def test_images_of_unlike_sizes_give_what_each_gives_alone(name, front_end, texture) -> None:
    images = [_image(texture, 96, 128, 1), _image(texture, 90, 125, 2), _image(texture, 64, 160, 3)]
    mask = np.ones((90, 125), bool)
    mask[:, :50] = False
    masks = [None, mask, None]

    together = front_end(name).detect(images, masks)

    for image, allowed, found in zip(images, masks, together, strict=True):
        _equal(found, front_end(name).detect([image], [allowed])[0], 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_colour_images_are_taken_and_inputs_left_alone(name, front_end, texture) -> None:
    grey = _image(texture, 96, 128)
    colour = np.repeat(grey[:, :, None], 3, axis=2)
    before = colour.copy()
    colour.setflags(write=False)

    found = front_end(name).detect([colour])[0]

    np.testing.assert_array_equal(colour, before)
    assert len(found) == pytest.approx(len(front_end(name).detect([grey])[0]), abs=3)


@pytest.mark.parametrize("name", NAMES)
def test_a_shift_of_the_image_shifts_the_keypoints(name, front_end, texture) -> None:
    wide = _image(texture, 128, 192)
    image0, image1 = np.ascontiguousarray(wide[:, 32:]), np.ascontiguousarray(wide[:, :-32])

    found0, found1 = front_end(name).detect([image0, image1])

    inner = found0.points[(found0.points[:, 0] > 40) & (found0.points[:, 0] < 88)]
    moved = inner + np.array([32, 0])
    nearest = np.abs(moved[:, None] - found1.points).max(axis=2).min(axis=1)
    assert len(inner) > 3
    assert (nearest < 0.5).mean() > 0.6


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_option_is_named(name) -> None:
    with pytest.raises((TypeError, ImportError), match=r"max_keypoint|pip install"):
        features.build(name, device="cpu", max_keypoint=3)


@pytest.mark.parametrize("name", ["aliked", "disk", "xfeat"])
def test_random_weights_mark_what_they_find(name, texture) -> None:
    pytest.importorskip("kornia")

    front_end = features.build(name, device="cpu", weights=None)
    described = features.describe("toy", front_end, [_image(texture, 64, 64)])[0]

    assert front_end.untrained
    assert described.untrained


def test_an_unknown_front_end_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no front end 'sifft'; there are aliked, .*xfeat"):
        features.build("sifft")


def test_a_device_that_is_not_there_is_refused() -> None:  # DEV-01
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")

    with pytest.raises(ValueError, match="device 'cuda' is not on this machine"):
        features.build("xfeat", device="cuda")
    assert features.build("xfeat", device="auto") is not None


@pytest.mark.parametrize("name", NAMES)
def test_front_ends_ask_for_no_package_before_they_are_built(name) -> None:
    assert callable(importlib.import_module(f"matcher.features.{name.replace('-', '_')}").build)


# Choosing keypoints


def test_equal_scores_keep_their_order(texture) -> None:  # KPT-12
    points = np.array([[20, 20], [30, 30], [40, 40], [25, 25]], np.float32)
    scores = np.array([0.5, 0.9, 0.5, 0.5], np.float32)

    rows = Choice(max_keypoints=3).rows(points, scores, _image(texture, 64, 64), None)

    assert rows.tolist() == [1, 0, 2]


def test_the_border_is_counted_from_both_sides(texture) -> None:
    points = np.array([[3.9, 9], [4, 9], [59.9, 9], [60, 9], [9, 3.9], [9, 44]], np.float32)

    rows = Choice(border=4).rows(points, np.ones(6, np.float32), _image(texture, 48, 64), None)

    assert rows.tolist() == [1, 2]


def test_choices_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="max_keypoints must be at least 0, not -1"):
        Choice(max_keypoints=-1)
    with pytest.raises(ValueError, match="border must be at least 0, not -2"):
        Choice(border=-2)


def test_there_must_be_a_mask_for_each_image(front_end, texture) -> None:
    with pytest.raises(ValueError, match="1 images need as many masks, not 2"):
        front_end("xfeat").detect([_image(texture, 64, 64)], [None, None])


# Sampling


def test_samples_of_a_map_of_coordinates_are_the_points() -> None:  # KPT-13
    rows, columns = torch.meshgrid(torch.arange(60.0), torch.arange(80.0), indexing="ij")
    cells = torch.stack([columns, rows])
    points = torch.tensor([[3.5, 3.5], [320, 240], [633.7, 475], [0, 0], [639, 479]])

    read = sample(cells * 8 + 3.5, points, 8)
    smooth = sample(cells * 8 + 3.5, points, 8, "bicubic")

    clamped = torch.tensor([[633.7, 475], [3.5, 3.5], [635.5, 475.5]])
    torch.testing.assert_close(read, torch.cat([points[:2], clamped]), atol=1e-3, rtol=0)
    # torch's cubic kernel (a = -0.75) does not keep a slope exactly: 1/64 of a cell
    torch.testing.assert_close(smooth[:2], points[:2], atol=8 / 64, rtol=0)


def test_bilinear_samples_equal_scipys() -> None:
    features_map = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 12, 9))).float()
    points = torch.from_numpy(np.random.default_rng(1).uniform(4, 60, (50, 2))).float()

    read = sample(features_map, points, 8)[:, 0]

    where = ((points.numpy() + 0.5) / 8 - 0.5).T[::-1]
    expected = map_coordinates(features_map[0].numpy(), where, order=1, mode="nearest")
    np.testing.assert_allclose(read, expected, atol=1e-5)


def test_sampling_names_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"points must be \(N 2\)"):
        sample(torch.zeros(4, 5, 5), torch.zeros(3, 3), 8)
    with pytest.raises(ValueError, match=r"features must be \(C h w\)"):
        sample(torch.zeros(5, 5), torch.zeros(3, 2), 8)


# Peaks


@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_the_highest_score_near_equals_max_pooling(window) -> None:
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 1, 13, 17)))

    expected = torch.nn.functional.max_pool2d(scores, window, 1, window // 2)

    torch.testing.assert_close(highest_near(scores, window), expected, atol=0, rtol=0)


def test_an_even_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be odd, not 4"):
        features.build("xfeat", device="cpu", window=4).detect([np.zeros((64, 64), np.float32)])


# XFeat's network


@pytest.fixture(scope="module")
def network():
    network = xfeat.XFeat()
    weights.load_strict(network, weights.state_dict("xfeat"), "xfeat")
    return network.eval()


def test_xfeat_equals_kornias(network, texture) -> None:
    kornia = pytest.importorskip("kornia")
    other = kornia.feature.xfeat.XFeatModel().eval()
    other.load_state_dict(weights.state_dict("xfeat"))
    image = torch.from_numpy(_image(texture, 96, 160))[None, None]

    with torch.inference_mode():
        ours = xfeat.folded(network)(xfeat.standardise(image))
        theirs = other(image)

    for mine, expected in zip(
        (ours.features, ours.keypoint_logits, ours.reliability), theirs, strict=True
    ):
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-5)


def test_folding_batch_norms_changes_nothing(network, texture) -> None:
    image = xfeat.standardise(torch.from_numpy(_image(texture, 64, 96))[None, None])
    pair = torch.randn(2, 10, 64, generator=torch.Generator().manual_seed(0))

    with torch.inference_mode():
        before, after = network(image), xfeat.folded(network)(image)
        moves = network.fine_offsets(*pair), xfeat.folded(network).fine_offsets(*pair)

    torch.testing.assert_close(after.features, before.features, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(moves[1], moves[0], atol=1e-5, rtol=1e-5)
    assert not any("running_mean" in key for key in xfeat.folded(network).state_dict())
    assert any("running_mean" in key for key in network.state_dict())  # the original is left alone


def test_xfeat_keypoints_are_kornias(front_end, texture) -> None:
    kornia = pytest.importorskip("kornia")
    other = kornia.feature.XFeat().eval()
    other.net.load_state_dict(weights.state_dict("xfeat"))
    image = _image(texture, 96, 160)

    ours = front_end("xfeat", border=2, min_contrast=0.0, subpixel=False).detect([image])[0]
    theirs = other.detectAndCompute(torch.from_numpy(image)[None, None])[0]

    expected = theirs["keypoints"].numpy()
    distance = np.abs(ours.points[:, None] - expected).max(axis=2)
    rows = distance.argmin(axis=0)
    assert len(ours) == len(expected)
    assert (distance.min(axis=0) == 0).all()
    cosine = (ours.descriptors[rows] * theirs["descriptors"].numpy()).sum(axis=1)
    assert np.median(cosine) > 0.995  # theirs are read up to half a pixel beside the keypoint


@pytest.mark.parametrize("beside", [(0.0, 0.0), (0.2, -0.4), (-0.45, 0.1), (0.3, 0.3)])
def test_a_peak_between_pixels_is_placed_nearer_than_its_pixel(beside) -> None:
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(15.0), indexing="ij")
    for row, column in ((6, 8), (3, 4)):
        far = (x - column - beside[0]) ** 2 + (y - row - beside[1]) ** 2
        chances = torch.exp(-far / (2 * 0.6**2))  # as wide as a network's

        (step,) = below_pixel(chances, torch.tensor([row]), torch.tensor([column]))

        wanted = torch.tensor(beside)
        assert (step - wanted).norm() <= 0.6 * wanted.norm() + 1e-5
        assert (step.abs() < 0.5).all()


def test_peaks_at_the_edge_and_of_no_chance_stay_near_their_pixels() -> None:
    corner = torch.zeros(4, 5)
    corner[0, 0] = 1
    nothing = torch.zeros(4, 5)

    assert below_pixel(corner, torch.tensor([0]), torch.tensor([0])).abs().max() < 0.5
    assert (below_pixel(nothing, torch.tensor([2]), torch.tensor([2])) == 0).all()
    assert below_pixel(nothing, torch.tensor([]).long(), torch.tensor([]).long()).shape == (0, 2)


def test_of_cells_that_share_a_corner_the_likelier_keeps_it() -> None:
    chances = torch.tensor([[0.9, 0.5, 0.8], [0.2, 0.4, 0.4]])
    points = torch.tensor(
        [[[7.0, 3], [8, 3], [20, 3]], [[7, 8], [15, 11], [16, 11]]]
    )  # (0, 1) lies beside (0, 0); (1, 1) and (1, 2) are equal
    expected = torch.tensor([[True, False, True], [True, True, True]])
    assert torch.equal(strongest_nearby(chances, points, apart=4.0), expected)
    batch = strongest_nearby(chances.expand(2, 2, 3), points.expand(2, 2, 3, 2), apart=4.0)
    assert torch.equal(batch, expected.expand(2, 2, 3))


def test_strongest_nearby_is_a_search_through_all_neighbours() -> None:
    random = torch.Generator().manual_seed(0)
    height, width = 6, 9
    chances = torch.rand(height, width, generator=random)
    corner = torch.stack(
        torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1
    )
    points = 8 * corner + torch.randint(8, (height, width, 2), generator=random)
    flat, values = points.flatten(0, 1).double(), chances.flatten()
    near = torch.cdist(flat, flat, p=torch.inf) < 4
    beaten = (near & (values[None] > values[:, None])).any(1)
    assert 0 < beaten.sum() < len(values)
    assert torch.equal(strongest_nearby(chances, points, 4.0).flatten(), ~beaten)


def test_xfeat_below_the_pixel_keeps_pixels_and_descriptors(front_end, texture) -> None:
    image = _image(texture, 123, 157)
    whole, below = (
        front_end("xfeat", border=2, subpixel=subpixel).detect([image])[0]
        for subpixel in (False, True)
    )

    np.testing.assert_array_equal(np.rint(below.points), whole.points)
    np.testing.assert_array_equal(below.descriptors, whole.descriptors)
    assert np.abs(below.points - whole.points).max() > 0.1


def test_fine_offsets_point_to_the_likeliest_pixel(network) -> None:
    last = network.fine_matcher[-1]
    kept = last.weight.data.clone(), last.bias.data.clone()
    last.weight.data.zero_()
    last.bias.data.zero_()
    last.bias.data[8 * 1 + 6] = 50.0  # row 1, column 6

    with torch.inference_mode():
        moves, confidence = network.fine_offsets(torch.zeros(1, 64), torch.zeros(1, 64))
    last.weight.data, last.bias.data = kept

    torch.testing.assert_close(moves, torch.tensor([[2.0, -3.0]]))
    assert confidence.item() == pytest.approx(1)


def test_xfeat_names_what_is_wrong_with_an_image() -> None:
    with pytest.raises(ValueError, match="image sides must be multiples of 32"):
        xfeat.XFeat()(torch.zeros(1, 1, 64, 60))
    with pytest.raises(ValueError, match=r"image must be \(B 1 H W\)"):
        xfeat.XFeat()(torch.zeros(1, 3, 64, 64))


# SIFT and ORB


def test_sift_places_have_no_bias_against_the_mirror_image(front_end, texture) -> None:
    image = _image(texture, 200, 240)

    found = front_end("sift").detect([image])[0].points
    mirrored = front_end("sift").detect([np.ascontiguousarray(image[:, ::-1])])[0].points

    back = np.stack([239 - mirrored[:, 0], mirrored[:, 1]], axis=1)
    difference = found[:, None] - back
    nearest = np.abs(difference).max(axis=2).argmin(axis=1)
    offsets = difference[np.arange(len(found)), nearest]
    close = offsets[np.abs(offsets).max(axis=1) < 1]
    assert len(close) > 0.8 * len(found)
    assert abs(np.median(close[:, 0])) < 0.02


def test_root_sift_is_the_square_root_of_shares(front_end, texture) -> None:
    cv2 = pytest.importorskip("cv2")
    image = _image(texture, 120, 160)
    detector = cv2.SIFT_create(enable_precise_upscale=True)
    _, raw = detector.detectAndCompute((image * 255).round().astype(np.uint8), None)

    found = front_end("sift", max_keypoints=None, border=0, min_contrast=0.0).detect([image])[0]

    expected = np.sqrt(raw / raw.sum(axis=1, keepdims=True))
    assert found.descriptors.shape == expected.shape
    similarity = found.descriptors @ expected.T
    np.testing.assert_allclose(similarity.max(axis=1), 1, atol=1e-5)


def test_scales_and_angles_follow_the_image(front_end, texture) -> None:
    image = _image(texture, 160, 160)
    turned = np.ascontiguousarray(np.rot90(image, -1))  # clockwise: x to y

    found0, found1 = front_end("sift").detect([image, turned])

    similarity = found0.descriptors @ found1.descriptors.T
    rows = np.flatnonzero(similarity.max(axis=1) > 0.97)
    partners = similarity[rows].argmax(axis=1)
    turns = np.exp(1j * (found1.angles[partners] - found0.angles[rows]))
    assert len(rows) > 20
    assert np.angle(np.median(turns.real) + 1j * np.median(turns.imag)) == pytest.approx(
        np.pi / 2, abs=0.05
    )
    assert np.median(found1.scales[partners] / found0.scales[rows]) == pytest.approx(1, abs=0.02)


def test_orb_products_count_the_bits_that_differ(front_end, texture) -> None:
    found = front_end("orb").detect([_image(texture, 120, 160)])[0]
    bits = found.descriptors > 0

    hamming = (bits[:5, None] != bits[None, :7]).sum(axis=2)

    products = found.descriptors[:5] @ found.descriptors[:7].T
    np.testing.assert_allclose(products, 1 - 2 * hamming / 256, atol=1e-5)


# Saving descriptions: KPT-06, KPT-11


@pytest.fixture
def description():
    rng = np.random.default_rng(0)
    points = np.array([[1234.56, 3000.3], [4097.5, 0.25], [70000.25, 17]], np.float32)
    return Description(
        method="toy",
        image=rng.random((4, 5), dtype=np.float32),
        mask=rng.random((4, 5)) > 0.5,
        points=points,
        scores=np.array([0.9, 0.5, 0.1], np.float32),
        descriptors=rng.random((3, 8)).astype(np.float16),
        scales=np.array([1, 2, 3], np.float32),
        angles=np.array([0.1, 0.2, 0.3], np.float32),
        maps={"fine": rng.random((2, 3, 4)).astype(np.float32)},
        untrained=True,
    )


def test_a_saved_description_comes_back_whole(description, tmp_path) -> None:
    features.save(description, tmp_path / "a.npz")
    read = features.load(tmp_path / "a.npz")

    for name in ("image", "mask", "points", "scores", "descriptors", "scales", "angles"):
        before, after = getattr(description, name), getattr(read, name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(read.maps["fine"], description.maps["fine"])
    assert (read.method, read.untrained, read.size) == ("toy", True, (4, 5))
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_what_was_not_there_stays_away(description, tmp_path) -> None:
    bare = Description("toy", description.image, None, description.points, description.scores,
                       description.descriptors)  # fmt: skip
    features.save(bare, tmp_path / "a.npz")
    read = features.load(tmp_path / "a.npz")

    assert read.mask is None
    assert read.scales is None
    assert read.angles is None
    assert not read.maps


def _rewrite(path, change):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize("name", ["angles", "points", "map:fine"])
def test_a_lost_field_is_named(description, tmp_path, name) -> None:
    path = features.save(description, tmp_path / "a.npz")
    _rewrite(path, lambda arrays: arrays.pop(name))

    with pytest.raises(ValueError, match=f"a.npz lacks {name}"):
        features.load(path)


def test_a_misshapen_field_is_named(description, tmp_path) -> None:
    path = features.save(description, tmp_path / "a.npz")
    _rewrite(path, lambda arrays: arrays.update(scales=np.zeros(2, np.float32)))

    with pytest.raises(ValueError, match="scales has 2 rows, points has 3"):
        features.load(path)


def test_another_format_or_another_file_is_refused(description, tmp_path) -> None:
    path = features.save(description, tmp_path / "a.npz")
    about = {"format": 99, "method": "toy", "untrained": False, "fields": []}
    _rewrite(path, lambda arrays: arrays.update(about=np.array(json.dumps(about))))
    (tmp_path / "b.npz").write_bytes(b"no archive")

    with pytest.raises(ValueError, match="has format 99, not 1"):
        features.load(path)
    with pytest.raises(ValueError, match="is no saved description"):
        features.load(tmp_path / "b.npz")
    with pytest.raises(FileNotFoundError):
        features.load(tmp_path / "c.npz")
