"""Training pairs from photographs: their places against an exact scene, their file, their batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as PilImage
from scipy.ndimage import map_coordinates

import matcher
from matcher import assets, cli, images
from matcher.mining import dense
from matcher.mining.candidates import candidate_pairs
from matcher.mining.miner import MineOptions, mine
from matcher.mining.pair_file import Collection, MinedPair, join, load_pairs, save_pairs
from matcher.mining.real_pairs import RealPairs
from matcher.mining.regions import hold_out
from matcher.types import Description, Matches

HEIGHT, WIDTH, FOCAL = 240, 320, 300.0
INTRINSICS = np.array([[FOCAL, 0, (WIDTH - 1) / 2], [0, FOCAL, (HEIGHT - 1) / 2], [0, 0, 1]])
SLOPE = 0.5  # the scene is a roof with its ridge towards the cameras: depth is 4 + SLOPE * |x|
VIEWS = 5


def camera(row):
    """Return rotation and translation, camera from world, of a photograph on an arc about the roof."""
    angle = np.radians(-20 + 40 * row / (VIEWS - 1))
    rotation = np.array(
        [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    )
    centre = np.array([0, 0.1 * row, 0]) + np.array([0, 0, 5]) - rotation.T @ [0, 0, 5]
    return rotation, -rotation @ centre


def scene_points(row, pixels):
    """Meet the roof with the rays of (N, 2) pixels: (N, 3) in the world."""
    rotation, translation = camera(row)
    rays = np.c_[pixels, np.ones(len(pixels))] @ np.linalg.inv(INTRINSICS).T @ rotation
    centre = -rotation.T @ translation
    points = []
    for side in (-1, 1):
        along = (4 + side * SLOPE * centre[0] - centre[2]) / (
            rays[:, 2] - side * SLOPE * rays[:, 0]
        )
        points.append(centre + along[:, None] * rays)
    return np.where(points[1][:, :1] >= 0, points[1], points[0])


def project(row, points):
    rotation, translation = camera(row)
    pixels = (points @ rotation.T + translation) @ INTRINSICS.T
    return pixels[:, :2] / pixels[:, 2:]


def true_places(row0, row1, points0):
    return project(row1, scene_points(row0, points0))


@pytest.fixture(scope="module")
def roof(tmp_path_factory):
    """Photographs of the roof, and one of something else."""
    folder = tmp_path_factory.mktemp("roof")
    data = assets.folder("data") / "images"
    texture = images.grey(images.read(data / "facade_0.jpg"))
    pixels = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT)), -1).reshape(-1, 2)
    for row in range(VIEWS):
        x, y, _ = scene_points(row, pixels).T
        half = np.array(texture.shape[::-1]) / 2
        places = [half[1] + y * 110, half[0] + x * 110]
        shown = map_coordinates(texture, places, order=1, mode="mirror")
        picture = (255 * shown.reshape(HEIGHT, WIDTH)).round().astype(np.uint8)
        PilImage.fromarray(picture).save(folder / f"roof_{row}.png")
    other = images.grey(images.read(data / "sand_0.jpg"))[:HEIGHT, :WIDTH]
    PilImage.fromarray((255 * other).astype(np.uint8)).save(folder / "sand.png")
    return folder


@pytest.fixture(scope="module")
def teacher():
    return matcher.create("superglue", refine=False, device="cpu", max_keypoints=300)


@pytest.fixture(scope="module")
def mined(roof, teacher):
    pytest.importorskip("pycolmap")
    return mine(sorted(roof.glob("*.png")), teacher, MineOptions(partners=2))


def test_matches_of_an_exact_scene_lie_where_the_scene_says(mined):
    errors = np.concatenate(
        [
            np.linalg.norm(true_places(p.image0, p.image1, p.points0) - p.points1, axis=1)
            for p in mined.pairs
        ]
    )

    assert np.median(errors) < 0.2
    assert np.mean(errors <= 1) > 0.97
    assert np.mean(errors <= 2) > 0.99


def test_most_cells_that_both_photographs_show_get_a_place(mined):
    pair = max(mined.pairs, key=len)
    x, y = np.meshgrid(np.arange(3.5, WIDTH, 8), np.arange(3.5, HEIGHT, 8))
    cells = np.stack([x, y], -1).reshape(-1, 2)
    there = true_places(pair.image0, pair.image1, cells)
    shown = ((there > 8) & (there < [WIDTH - 8, HEIGHT - 8])).all(1)

    nearest = np.linalg.norm(cells[:, None] - pair.points0, axis=2).min(1)

    assert np.mean(nearest[shown] <= 6) > 0.5


def test_photographs_that_were_never_matched_get_pairs_through_the_points_they_share(mined):
    assert mined.origin["placed"] == VIEWS
    assert len(mined.pairs) > mined.origin["verified"]


def test_a_photograph_of_something_else_is_in_no_pair(mined):
    named = {mined.images[row].name for p in mined.pairs for row in (p.image0, p.image1)}

    assert named == {f"roof_{row}.png" for row in range(VIEWS)}


def test_local_maps_say_how_a_small_step_looks_in_the_other_photograph(mined):
    pair = max(mined.pairs, key=len)
    step = np.array([2.0, 1.0])
    start, end = (
        true_places(pair.image0, pair.image1, pair.points0 + shift) for shift in (0 * step, step)
    )

    errors = np.linalg.norm(pair.linear1_from_0 @ step - (end - start), axis=1)

    assert np.median(errors) < 0.1


def test_mining_again_gives_the_same(roof, mined, teacher):
    again = mine(sorted(roof.glob("*.png")), teacher, MineOptions(partners=2))

    assert [(p.image0, p.image1) for p in again.pairs] == [
        (p.image0, p.image1) for p in mined.pairs
    ]
    for first, second in zip(mined.pairs, again.pairs, strict=True):
        np.testing.assert_array_equal(first.points1, second.points1)


def test_mined_points_are_pixels_of_the_photographs_whatever_the_size_they_were_matched_at(
    roof, teacher
):
    pytest.importorskip("pycolmap")
    options = MineOptions(long_side=240, pairs_per_image=1)
    small = mine(sorted(roof.glob("roof_*.png")), teacher, options)

    assert len(small.pairs) >= 3

    for pair in small.pairs:
        truth = true_places(pair.image0, pair.image1, pair.points0)
        assert np.median(np.linalg.norm(truth - pair.points1, axis=1)) < 0.3


def test_a_teacher_that_matches_places_is_refused(roof):
    places = matcher.create("loftr", refine=False, device="cpu")

    with pytest.raises(ValueError, match="mining needs a teacher that matches listed keypoints"):
        mine(sorted(roof.glob("roof_[01].png")), places)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_side": 10}, "long_side must be at least 64, not 10"),
        ({"partners": 0}, "partners must be at least 1, not 0"),
        ({"min_matches": 7}, "min_matches must be at least 8, not 7"),
        ({"max_error": 0}, "max_error must be above 0, not 0"),
        ({"pairs_per_image": -1}, "pairs_per_image must be above 0, not -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MineOptions(**options)


# -- spreading


@pytest.fixture
def affine_pair(texture):
    """A texture seen through an affine map: images and (2, 3) image 1 from image 0."""
    image0 = texture(160, 200, sigma=2.0).astype(np.float32) / 255
    forward = np.array([[1.1, 0.15, -20.0], [-0.1, 0.95, 15.0]])
    backward = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
    x, y = np.meshgrid(np.arange(200), np.arange(160))
    there = np.stack([x, y, np.ones_like(x)], -1) @ backward[:2].T
    image1 = map_coordinates(image0, [there[..., 1], there[..., 0]], order=3, mode="constant")
    return image0, image1.astype(np.float32), forward


def sparse_matches(forward, wrong=0):
    rng = np.random.default_rng(0)
    points0 = np.stack([rng.uniform(20, 180, 60), rng.uniform(20, 140, 60)], 1)
    points1 = points0 @ forward[:, :2].T + forward[:, 2]
    inside = ((points1 > 10) & (points1 < [190, 150])).all(1)
    points0, points1 = points0[inside], points1[inside]
    points1[:wrong] += [25, -15]
    return Matches(points0, points1, np.ones(len(points0)))


def test_spreading_covers_the_inside_of_the_matches_and_is_exact(affine_pair):
    image0, image1, forward = affine_pair

    found = dense.spread(sparse_matches(forward), image0, image1)

    errors = np.linalg.norm(
        found.points0 @ forward[:, :2].T + forward[:, 2] - found.points1, axis=1
    )
    assert len(found) > 100
    assert errors.max() < 0.5
    assert found.scores.min() >= 0.5


def test_wrong_matches_do_not_spread(affine_pair):
    image0, image1, forward = affine_pair

    found = dense.spread(sparse_matches(forward, wrong=6), image0, image1)

    errors = np.linalg.norm(
        found.points0 @ forward[:, :2].T + forward[:, 2] - found.points1, axis=1
    )
    assert len(found) > 30
    assert np.mean(errors < 1) > 0.98


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_or_collinear_matches_spread_to_nothing(affine_pair, count):
    image0, image1, _ = affine_pair
    line = np.arange(count)[:, None] * np.array([20.0, 0]) + 50
    matches = Matches(line, line, np.ones(count))

    found = dense.spread(matches, image0, image1)

    assert len(found) == 0


def test_spreading_over_other_pictures_confirms_next_to_nothing(affine_pair, texture):
    image0, _, forward = affine_pair
    other = texture(160, 200, seed=9, sigma=2.0).astype(np.float32) / 255

    found = dense.spread(sparse_matches(forward), image0, other)

    assert len(found) <= 3


def test_agreement_is_one_in_the_same_place_and_nothing_for_inverted_pixels(texture):
    image = texture(80, 80, sigma=2.0).astype(np.float32) / 255
    points = np.array([[40.0, 40.0], [30.5, 45.25]])
    matches = Matches(points, points, np.ones(2), linear1_from_0=np.stack([np.eye(2)] * 2))

    np.testing.assert_allclose(dense.agreement(matches, image, image), 1, atol=1e-5)
    np.testing.assert_array_equal(dense.agreement(matches, image, 1 - image), 0)
    with pytest.raises(ValueError, match="agreement needs matches with linear1_from_0"):
        dense.agreement(replace(matches, linear1_from_0=None), image, image)


# -- candidates


def description(descriptors):
    descriptors = np.asarray(descriptors, np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True).clip(1e-9)
    count = len(descriptors)
    blank = np.zeros((8, 8), np.float32)
    return Description("x", blank, None, np.zeros((count, 2)), np.ones(count), descriptors)


def test_candidates_are_those_with_most_in_common():
    rng = np.random.default_rng(0)
    words = rng.normal(size=(100, 128))
    described = [description(words[start : start + 40]) for start in (0, 10, 20, 60)]

    assert candidate_pairs(described, 1) == [(0, 1), (1, 2)]
    assert candidate_pairs(described, 3) == [(0, 1), (0, 2), (1, 2)]


def test_photographs_without_keypoints_are_no_candidates():
    empty = description(np.zeros((0, 16)))

    assert candidate_pairs([empty, empty, description(np.eye(16))], 2) == []
    assert candidate_pairs([], 2) == []


# -- the file


def made_pair(image0, image1, count=20, seed=0, held_out=False):
    rng = np.random.default_rng(seed)
    points = rng.uniform(20, 70, (count, 2)).astype(np.float32)
    maps = np.broadcast_to(np.eye(2, dtype=np.float32), (count, 2, 2))
    return MinedPair(image0, image1, points, points + 1, rng.random(count), maps, held_out)


def chain(count):
    """Photographs in a row, each with pairs to the next two."""
    pairs = [made_pair(i, j) for i in range(count) for j in (i + 1, i + 2) if j < count]
    names = tuple(f"/nowhere/{row}.png" for row in range(count))
    return Collection(names, ((90, 90),) * count, tuple(pairs), {"seed": 3})


def test_a_file_gives_back_what_was_written(mined, tmp_path):
    path = save_pairs(mined, tmp_path / "new" / "pairs.npz")

    read = load_pairs(path)

    assert read.images == tuple(path.resolve() for path in mined.images)
    assert read.sizes == mined.sizes
    assert read.origin == mined.origin
    for first, second in zip(mined.pairs, read.pairs, strict=True):
        assert (first.image0, first.image1) == (second.image0, second.image1)
        for name in ("points0", "points1", "confidence", "linear1_from_0"):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_a_folder_with_its_file_can_be_moved(mined, roof, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    for photograph in roof.glob("*.png"):
        (old / photograph.name).write_bytes(photograph.read_bytes())
    moved = replace(mined, images=tuple(old / path.name for path in mined.images))
    save_pairs(moved, old / "pairs.npz")

    old.rename(tmp_path / "new")

    assert len(RealPairs(tmp_path / "new" / "pairs.npz")) == len(mined.pairs)


def test_a_file_without_pairs_is_a_file(tmp_path):
    path = save_pairs(Collection((), (), ()), tmp_path / "none.npz")

    assert load_pairs(path).pairs == ()
    with pytest.raises(ValueError, match="no pair of the 0 is for training"):
        RealPairs(path)


def test_files_that_are_no_pairs_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"pairs.csv must end in .npz"):
        save_pairs(Collection((), (), ()), tmp_path / "pairs.csv")
    with pytest.raises(FileNotFoundError):
        load_pairs(tmp_path / "absent.npz")
    for name, content in {"text.npz": b"hello", "empty.npz": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is no file of mined pairs"):
            load_pairs(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"header": np.array('{"version": 2, "origin": {}}')}, "has version 2, not 1"),
        ({"pairs": np.array([[0, 7]])}, "a pair names a photograph that is not listed"),
        ({"counts": np.array([3])}, r"points0 must be \(3, 2\), not \(20, 2\)"),
        ({"images": np.array(["a", None], object)}, "is no file of mined pairs: Object arrays"),
        ({"points0": None}, "is no file of mined pairs"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path, change, message):
    whole = Collection(("a.png", "b.png"), ((90, 90),) * 2, (made_pair(0, 1),))
    whole = replace(whole, images=tuple(tmp_path / name for name in whole.images))
    path = save_pairs(whole, tmp_path / "pairs.npz")
    with np.load(path) as file:
        arrays = {**file, **change}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})

    with pytest.raises(ValueError, match=message):
        load_pairs(path)


def test_joined_collections_keep_their_pairs():
    both = join([chain(3), chain(4)])

    assert len(both.images) == 7
    assert [(p.image0, p.image1) for p in both.pairs[3:5]] == [(3, 4), (3, 5)]
    assert join([]).pairs == ()


# -- held-out regions


def test_no_photograph_is_both_learned_from_and_held_out():
    whole = chain(60)

    parted = hold_out(whole, 10)

    held, learned = (
        {row for p in parted.pairs if p.held_out is kind for row in (p.image0, p.image1)}
        for kind in (True, False)
    )
    assert sum(p.held_out for p in parted.pairs) == 10
    assert not held & learned
    assert len(parted.pairs) > 0.85 * len(whole.pairs)


def test_every_scene_spares_its_share_and_a_small_one_nothing():
    whole = join([chain(40), chain(20), chain(4)])

    parted = hold_out(whole, 100)  # of which a tenth of 119 is left

    scenes = [p.image0 // 40 + (p.image0 >= 60) for p in parted.pairs if p.held_out]
    assert len(scenes) <= 12
    assert scenes.count(0) == pytest.approx(8, abs=2)
    assert scenes.count(1) == pytest.approx(4, abs=2)
    assert scenes.count(2) == 0


def test_holding_out_nothing_changes_nothing():
    assert len(hold_out(chain(10), 0).pairs) == len(chain(10).pairs)
    assert hold_out(Collection((), (), ()), 5).pairs == ()
    with pytest.raises(ValueError, match="pairs must not be negative, not -1"):
        hold_out(chain(3), -1)


# -- batches


@pytest.fixture
def affine_file(tmp_path, affine_pair):
    """A file of one pair of photographs with exact places on a grid."""
    *pictures, forward = affine_pair
    paths = tuple(tmp_path / f"{row}.png" for row in (0, 1))
    for path, picture in zip(paths, pictures, strict=True):
        PilImage.fromarray((255 * picture.clip(0, 1)).round().astype(np.uint8)).save(path)
    x, y = np.meshgrid(np.arange(11.5, 190, 8), np.arange(11.5, 150, 8))
    points0 = np.stack([x, y], -1).reshape(-1, 2).astype(np.float32)
    points1 = (points0 @ forward[:, :2].T + forward[:, 2]).astype(np.float32)
    inside = ((points1 > 8) & (points1 < [192, 152])).all(1)
    maps = np.broadcast_to(forward[:, :2], (inside.sum(), 2, 2)).astype(np.float32)
    confidence = np.linspace(0.5, 1, inside.sum(), dtype=np.float32)
    pair = MinedPair(0, 1, points0[inside], points1[inside], confidence, maps)
    return save_pairs(Collection(paths, ((160, 200),) * 2, (pair,)), tmp_path / "pairs.npz")


def test_places_of_a_batch_show_the_same_spot_in_both_views(affine_file):
    pairs = RealPairs(affine_file)

    views = pairs.draw(3, (96, 128), torch.Generator().manual_seed(0))

    assert views.image0.shape == (3, 1, 96, 128)
    assert not views.complete.any()
    for ours, other, places in (
        (views.image0, views.image1, views.places0),
        (views.image1, views.image0, views.places1),
    ):
        known = places.isfinite().all(-1)
        unit = (places.nan_to_num() + 0.5) / torch.tensor([64.0, 48.0]) - 1
        there = torch.nn.functional.grid_sample(other, unit, align_corners=False)
        errors = (there - ours).abs()[:, 0][known]
        assert known.float().mean() > 0.3
        assert errors.median() < 0.02
        assert errors.quantile(0.95) < 0.08


def test_batches_follow_the_seed_alone(affine_file):
    pairs = RealPairs(affine_file)

    first, again, other = (
        pairs.draw(2, (64, 64), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )

    torch.testing.assert_close(first.places0, again.places0, equal_nan=True)
    assert not torch.equal(first.image0, other.image0)


def test_places_that_no_match_is_near_are_unknown(affine_file):
    whole = load_pairs(affine_file)
    one = replace(whole.pairs[0], **{
        name: getattr(whole.pairs[0], name)[:1]
        for name in ("points0", "points1", "confidence", "linear1_from_0")
    })  # fmt: skip
    pairs = RealPairs(replace(whole, pairs=(one,)))

    views = pairs.draw(1, (160, 200), torch.Generator().manual_seed(0))

    assert 0 < views.places0.isfinite().all(-1).sum() < 500


def test_pairs_come_as_tensors_at_the_long_side_asked_for(affine_file):
    full, half = RealPairs(affine_file)[0], RealPairs(affine_file, long_side=100)[0]

    assert full.image0.shape == (160, 200)
    assert full.image0.dtype == torch.uint8
    assert half.image1.shape == (80, 100)
    torch.testing.assert_close(half.points0, (full.points0 + 0.5) / 2 - 0.5)
    torch.testing.assert_close(half.points1, (full.points1 + 0.5) / 2 - 0.5)


def test_matches_below_the_confidence_asked_for_are_left_out(affine_file):
    all_of_them, sure = (RealPairs(affine_file, min_confidence=least)[0] for least in (0, 0.75))

    assert len(sure.points0) == pytest.approx(len(all_of_them.points0) / 2, abs=1)
    with pytest.raises(ValueError, match="no match has a confidence of 2"):
        RealPairs(affine_file, min_confidence=2)


def test_held_out_pairs_and_the_others_are_asked_for_apart(affine_file):
    with pytest.raises(ValueError, match="no pair of the 1 is held out"):
        RealPairs(affine_file, held_out=True)


def test_a_photograph_that_has_changed_is_refused(affine_file):
    PilImage.new("L", (50, 40)).save(affine_file.parent / "1.png")

    with pytest.raises(ValueError, match="is 50 x 40 pixels; when it was mined it had 200 x 160"):
        RealPairs(affine_file)


# -- the command


def test_the_command_writes_pairs_and_pictures(roof, tmp_path, capsys):
    pytest.importorskip("pycolmap")
    arguments = ["mine", str(roof), "--out", str(tmp_path / "pairs.npz"), "--held-out", "1"]
    options = ["--teacher", "superglue:max_keypoints=300", "--pictures", str(tmp_path / "look")]

    code = cli.run([*arguments, *options, "--names", "roof_*"])

    out = capsys.readouterr().out
    assert code == 0
    assert f"{VIEWS} photographs placed in 1 models" in out
    assert f"wrote {tmp_path / 'pairs.npz'}" in out
    assert len(load_pairs(tmp_path / "pairs.npz").images) == VIEWS
    assert len(list((tmp_path / "look").glob("pair_*.png"))) == 6


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--out", "pairs.csv"], "pairs.csv must end in .npz", 2),
        (["--out", "pairs.npz", "--names", "x_*"], "has 0 photographs named 'x_*'; 2 are", 1),
    ],
)
def test_wrong_usage_of_the_command_is_told_before_the_work(roof, capsys, arguments, message, code):
    assert cli.run(["mine", str(roof), *arguments]) == code
    assert message in capsys.readouterr().err
