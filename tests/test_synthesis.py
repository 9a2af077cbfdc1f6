"""Promises of the synthetic pairs: their truth is exact, their pictures show it."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from matcher import assets
from matcher.synthesis import homographies, light, scenes
from matcher.synthesis.homographies import crops, from_corners, transform
from matcher.synthesis.photographs import Photographs
from matcher.synthesis.scenes import look, rotations
from matcher.synthesis.surfaces import Board, Cameras, Relief
from matcher.synthesis.views import TwoViews, follow, pixel_grid

SIZE = (96, 128)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def photographs() -> Photographs:
    paths = sorted((assets.folder("data") / "photos").glob("*.jpg"))[:4]
    return Photographs.read(paths, long_side=256)


def inner_points(count: int = 200, batch: int = 4) -> torch.Tensor:
    far = torch.tensor([SIZE[1] - 1.0, SIZE[0] - 1.0])
    return torch.rand((batch, count, 2), generator=generator(9)) * far


def there_and_back(views: TwoViews) -> tuple[torch.Tensor, torch.Tensor]:
    points = inner_points()
    places, agreed0 = follow(views.places0, points)
    back, agreed1 = follow(views.places1, places.nan_to_num(0))
    good = places[..., 0].isfinite() & back[..., 0].isfinite() & agreed0 & agreed1
    return (back - points)[good].norm(dim=-1), good


def test_a_homography_has_the_four_corners_that_opencv_gives_it():
    corners0 = torch.rand((3, 4, 2), generator=generator(1)) * 100
    corners1 = corners0 + 10 * torch.randn((3, 4, 2), generator=generator(2))

    found = from_corners(corners0, corners1)

    for one, first, second in zip(found, corners0, corners1, strict=True):
        oracle = cv2.getPerspectiveTransform(first.numpy(), second.numpy())
        np.testing.assert_allclose(one.numpy(), oracle, rtol=1e-3, atol=1e-3)


def test_places_of_a_homography_are_where_it_says(photographs):
    views, pixels1_from_0 = homographies.draw(photographs, 4, SIZE, generator())

    wanted = transform(
        pixels1_from_0, pixel_grid(*SIZE, torch.device("cpu"))[None].expand(4, -1, -1, -1)
    )
    shown = views.places0[..., 0].isfinite()

    assert 0.2 < shown.float().mean() < 1
    torch.testing.assert_close(views.places0[shown], wanted[shown], rtol=0, atol=1e-3)


def test_both_images_of_a_homography_show_the_same_where_the_truth_says_so(photographs):
    config = homographies.Config(turn_degrees=5, any_turn=0, zoom_octaves=0.1, perspective=0.03)
    views, _ = homographies.draw(photographs, 4, SIZE, generator(), config)

    error = colour_error(views)

    assert error < 0.02


def colour_error(views: TwoViews) -> float:
    """Compare the grey values of image 0 with those of image 1 at their places."""
    grid = (views.places0.nan_to_num(0) + 0.5) / torch.tensor([SIZE[1], SIZE[0]]) * 2 - 1
    read = torch.nn.functional.grid_sample(views.image1, grid, align_corners=False)
    shown = views.places0[..., 0].isfinite()
    return float((read - views.image0)[:, 0][shown].abs().median())


def test_there_and_back_again_is_the_same_point(photographs):
    planes, _ = homographies.draw(photographs, 4, SIZE, generator())
    space, _, _ = scenes.draw(photographs, 4, SIZE, generator())

    for views in (planes, space):
        error, good = there_and_back(views)
        assert good.float().mean() > 0.2
        assert error.median() < 1e-3
        assert error.quantile(0.98) < 0.1


def test_places_in_space_are_projections_of_the_depth(photographs):
    views, (camera0, camera1), (seen0, _) = scenes.draw(photographs, 4, SIZE, generator())

    rows, columns = 40, 60
    pixel = torch.tensor([columns, rows, 1.0])
    for item in range(4):
        point = seen0.depth[item, rows, columns] * torch.linalg.solve(
            camera0.intrinsics[item], pixel
        )
        world = camera0.rotation[item].T @ (point - camera0.translation[item])
        there = camera1.intrinsics[item] @ (
            camera1.rotation[item] @ world + camera1.translation[item]
        )
        place = views.places0[item, rows, columns]
        if place[0].isfinite():
            torch.testing.assert_close(place, there[:2] / there[2], rtol=0, atol=2e-3)
    assert views.places0[:, rows, columns, 0].isfinite().any()


def test_both_images_of_a_scene_show_the_same_where_the_truth_says_so(photographs):
    config = scenes.Config(view_degrees=5, turn_degrees=3, zoom_octaves=0.1)
    views, _, _ = scenes.draw(photographs, 4, SIZE, generator(), config)

    assert colour_error(views) < 0.02


def front_camera(centre: float = 0.0) -> Cameras:
    """Look along z from (centre, 0, 0)."""
    intrinsics = torch.tensor([[[100.0, 0, 63.5], [0, 100, 47.5], [0, 0, 1]]])
    return Cameras(intrinsics, torch.eye(3)[None], torch.tensor([[-centre, 0, 0]]), SIZE)


def board(photographs: Photographs, x: float, z: float, half: float) -> Board:
    return Board(
        torch.tensor([[x, 0.0, z]]),
        torch.eye(3)[None],
        torch.tensor([[half, half]]),
        photographs.chosen(torch.tensor([0])),
    )


def test_the_nearer_board_hides_the_other(photographs):
    near, far = board(photographs, 0, 1.0, 0.1), board(photographs, 0, 2.0, 5.0)

    seen = look(front_camera(), [far, near])

    assert seen.depth[0, 47, 63] == pytest.approx(1.0)
    assert seen.depth[0, 47, 63 + 15] == pytest.approx(2.0)  # the near one ends at 10 pixels


def test_what_is_hidden_from_one_camera_has_no_place_in_it(photographs):
    cameras = front_camera(), front_camera(0.2)
    surfaces = [board(photographs, 0, 2.0, 5.0), board(photographs, 0.1, 1.0, 0.05)]
    seen = tuple(look(camera, surfaces) for camera in cameras)

    places = scenes._places(cameras, (seen[0], seen[1]))

    # The near board is seen at 73.5 by the first and at 53.5 by the second, where the far one's
    # points of columns 63.5 (10 pixels of disparity) lie.
    assert places[0, 47, 63, 0].isnan()
    assert places[0, 47, 74, 0] == pytest.approx(54.0, abs=1e-3)
    assert places[0, 47, 30, 0] == pytest.approx(20.0, abs=1e-3)


def test_a_tilted_board_is_as_deep_as_its_plane(photographs):
    turn = rotations(torch.tensor([[0.2, 0.5, 0.1]]))
    tilted = Board(
        torch.tensor([[0.1, 0.0, 1.5]]),
        turn.mT,
        torch.tensor([[3.0, 3.0]]),
        photographs.chosen(torch.tensor([0])),
    )
    camera = front_camera(0.3)

    depth = look(camera, [tilted]).depth

    ray = torch.tensor([(20 - 63.5) / 100, (70 - 47.5) / 100, 1.0])
    normal, origin = turn[0, :, 2], torch.tensor([0.3, 0, 0])
    wanted = (normal @ (tilted.centre[0] - origin)) / (normal @ ray)
    assert depth[0, 70, 20] == pytest.approx(float(wanted), rel=1e-4)


def test_rays_end_on_the_relief(photographs):
    hills = torch.tensor([[[0.1, 0.0, 0.3, 0.15], [-0.3, 0.1, 0.2, -0.1]]])
    relief = Relief(
        torch.tensor([1.2]), hills, torch.tensor([300.0]), photographs.chosen(torch.tensor([0]))
    )
    camera = front_camera(0.1)

    depth = look(camera, [relief]).depth[0]

    grid = pixel_grid(*SIZE, torch.device("cpu"))
    x = 0.1 + depth * (grid[..., 0] - 63.5) / 100
    y = depth * (grid[..., 1] - 47.5) / 100
    ground = 1.2 - sum(
        height * torch.exp(-((x - right) ** 2 + (y - down) ** 2) / (2 * width**2))
        for right, down, width, height in hills[0].tolist()
    )
    assert (depth - ground).abs().max() < 1e-3


def test_the_same_seed_makes_the_same_pairs_and_another_seed_others(photographs):
    first, again, other = (
        scenes.draw(photographs, 2, SIZE, generator(seed))[0] for seed in (3, 3, 4)
    )

    assert torch.equal(first.image0, again.image0)
    assert torch.equal(
        first.places1,
        again.places1,
    ) or torch.equal(first.places1.nan_to_num(), again.places1.nan_to_num())
    assert not torch.equal(first.image0, other.image0)


def test_unrelated_images_have_no_place_in_each_other(photographs):
    views = homographies.draw(photographs, 3, SIZE, generator())[0].unrelated()

    assert views.places0.isnan().all()
    assert views.complete.all()


def test_a_photograph_is_sampled_where_it_is_asked_for_and_mirrored_beyond(texture):
    picture = (texture(64, 64) / 255).astype(np.float32)
    textures = Photographs.of([picture], 64).chosen(torch.tensor([0]))
    places = torch.tensor([[[[5.0, 7.0], [-1.0, 7.0], [64.0, 7.0]]]])

    read = textures.sample(places, torch.ones(1))[0, 0, 0]

    wanted = [picture[7, 5], picture[7, 0], picture[7, 63]]
    np.testing.assert_allclose(read.numpy(), wanted, atol=0.003)


def test_shrinking_averages_what_a_pixel_covers():
    stripes = np.tile(np.array([0, 1], np.float32), (64, 32))
    textures = Photographs.of([stripes], 64).chosen(torch.tensor([0]))
    places = pixel_grid(16, 16, torch.device("cpu"))[None] * 4 + 1.5

    read = textures.sample(places, torch.full((1,), 4.0))

    np.testing.assert_allclose(read.numpy(), 0.5, atol=0.003)


def test_crops_lie_on_the_photograph():
    sizes = torch.tensor([[640.0, 480.0], [300.0, 400.0]])

    maps = crops(sizes, SIZE, generator(), (0.5, 1.0))
    ends = torch.tensor([[[[0.0, 0.0], [SIZE[1] - 1, SIZE[0] - 1]]]]).expand(2, -1, -1, -1)
    places = transform(maps, ends)

    assert (places >= -0.5).all()
    assert (places[:, 0] <= sizes[:, None]).all()


def test_photographs_of_nothing_are_refused():
    with pytest.raises(ValueError, match="no photographs: pairs are made out of at least one"):
        Photographs.of([])


def test_colour_photographs_keep_their_channels():
    photographs = Photographs.of([np.full((20, 30, 3), [0.2, 0.4, 0.6], np.float32)], colour=True)

    views, _ = homographies.draw(photographs, 1, (16, 16), generator())

    assert views.image0.shape == (1, 3, 16, 16)
    np.testing.assert_allclose(views.image0[0, :, 8, 8].numpy(), [0.2, 0.4, 0.6], atol=0.01)


def test_points_near_a_rim_are_not_agreed_on():
    places = torch.full((1, 4, 4, 2), torch.nan)
    places[:, :, :2] = pixel_grid(4, 2, torch.device("cpu"))

    found, agreed = follow(places, torch.tensor([[[0.5, 1.5], [1.4, 1.0], [2.9, 1.0]]]))

    assert agreed.tolist() == [[True, False, True]]
    torch.testing.assert_close(found[0, 0], torch.tensor([0.5, 1.5]))
    assert found[0, 2].isnan().all()


def test_no_strength_changes_nothing(photographs):
    image = homographies.draw(photographs, 2, SIZE, generator())[0].image0

    assert light.change(image, generator(), light.Config(strength=0)) is image


def test_changed_images_stay_in_range_and_differ_from_each_other(photographs):
    image = homographies.draw(photographs, 1, SIZE, generator())[0].image0.expand(16, -1, -1, -1)
    often = light.Config(*[1.0] * 8)

    changed = light.change(image, generator(), often)

    assert changed.min() >= 0
    assert changed.max() <= 1
    assert changed.isfinite().all()
    assert all(not torch.equal(changed[0], one) for one in changed[1:])


@pytest.mark.parametrize("step", [light.blur, light.motion])
def test_blur_leaves_a_flat_image_as_it_is(step):
    flat = torch.full((3, 1, 20, 24), 0.4)

    torch.testing.assert_close(step(flat, generator()), flat, rtol=0, atol=1e-5)


def test_blocks_are_rounded_as_jpeg_rounds_them(texture):
    picture = texture(64, 80, sigma=2)
    _, encoded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 50])
    oracle = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE).astype(np.float32)

    image = torch.from_numpy(picture)[None, None].float() / 255
    found = light.compress(image, torch.ones(1, 1, 1, 1)) * 255

    error = np.abs(found[0, 0].clamp(0, 255).numpy() - oracle)
    assert np.quantile(error, 0.95) < 2  # coefficients halfway between two steps go either way
    assert np.abs(found[0, 0].numpy() - picture).mean() > 0.3  # it does change something
