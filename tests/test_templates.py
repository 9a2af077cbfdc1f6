"""Template search: where, how many, how turned, how large, and when nothing is there."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import PIL.Image
import pytest
import torch
from scipy.ndimage import map_coordinates

import matcher
from matcher.templates import FindOptions, find, overlap, search
from matcher.templates import detail as detail_of_one
from matcher.templates.poses import Pose, make_template, shrink
from matcher.templates.settling import Settler, peak_offset
from matcher.templates.survey import Pyramid, Ranges, make_survey
from matcher.types import TemplateHit

MODES = ["exhaustive", "pyramid"]


def turned(picture, centre, angle_degrees=0.0, scale=1.0):
    """Turn a picture counter-clockwise on the screen, and scale it, about a point (x, y)."""
    angle = np.deg2rad(angle_degrees)
    to_scene = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    y, x = np.indices(picture.shape)
    steps = np.stack([x - centre[0], y - centre[1]])
    source = np.einsum("ij,jhw->ihw", np.linalg.inv(to_scene), steps)
    places = source[1] + centre[1], source[0] + centre[0]
    return map_coordinates(picture.astype(float), places, order=3, mode="reflect")


def place(hit: TemplateHit) -> tuple[float, float]:
    return hit.x, hit.y


@pytest.mark.parametrize("mode", MODES)
def test_exact_copy_is_found_at_its_centre(texture, mode):
    scene = texture(300, 400)

    (hit,) = find(scene[100:164, 200:280], scene, mode=mode)

    assert place(hit) == pytest.approx((239.5, 131.5), abs=0.02)
    assert hit.score == pytest.approx(1, abs=1e-6)
    assert hit.second_score < 0.6
    assert hit.subpixel == (True, True)
    np.testing.assert_allclose(
        hit.corners,
        [(199.5, 99.5), (279.5, 99.5), (279.5, 163.5), (199.5, 163.5)],
        atol=0.02,
    )


PHOTOGRAPHS = ["facade_0", "park_0", "sand_0", "viewpoint_1", "repetition_0"]


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_pyramid_search_finds_what_exhaustive_search_finds(name):
    scene = matcher.images.values(f"data/images/{name}.jpg")[..., 1]
    generator = np.random.default_rng(len(name))
    for side in (32, 48, 64, 96):
        y, x = (generator.integers(0, length - side) for length in scene.shape)
        part = scene[y : y + side, x : x + side] * 0.8 + generator.normal(0, 5, (side, side))
        for template in (part, np.clip(part, 0, 255).astype(np.uint8)):
            exact = find(template, scene, mode="exhaustive", max_hits=1)

            found = find(template, scene, mode="pyramid", max_hits=1)

            assert [place(hit) for hit in found] == [
                pytest.approx(place(hit), abs=0.01) for hit in exact
            ]


def test_a_worse_hit_does_not_hide_a_better_one_beside_it(texture):
    scene = texture(600, 1200, 5, sigma=12) * 0.5
    stripes, own = np.tile(texture(64, 18, 2, sigma=2), (1, 8)), texture(64, 144, 3, sigma=2)
    scene[102:166, 150:294] = 0.8 * stripes + 0.2 * own
    scene = scene.astype(np.uint8)

    result = search(scene[102:166, 202:266], scene, mode="pyramid", max_hits=1)

    assert result.reports[0].factor == 4  # it is half a pixel off the grid of this level
    assert place(result.hits[0]) == pytest.approx((233.5, 133.5), abs=0.05)


def test_a_peak_may_lie_far_from_that_of_the_level():
    scene = matcher.images.values("data/images/facade_1.jpg")[..., 1]
    noise = np.random.default_rng(5).normal(0, 5, (128, 128))
    template = np.clip(scene[259:387, 10:138] * 0.8 + noise, 0, 255).astype(np.uint8)

    result = search(template, scene, mode="pyramid", max_hits=1)

    assert result.reports[0].factor == 4
    assert place(result.hits[0]) == pytest.approx((73.5, 322.5), abs=0.05)


def test_levels_that_leave_many_peaks_are_not_followed(texture):
    scene = np.tile(texture(64, 64), (8, 8))
    part = scene[70:134, 80:144]

    crowded, lonely = search(part, scene), search(texture(64, 64), texture(512, 512))

    assert len(crowded.hits) == 49
    assert crowded.reports[0].factor == 1
    assert lonely.reports[0].factor == 4


@pytest.mark.parametrize(("own", "theirs"), [(1.0, 0.04), (0.04, 1.0), (0.01, 0.01)])
def test_contrast_of_a_few_grey_levels_is_enough(texture, own, theirs):
    picture = texture(300, 400, sigma=3)
    template = np.rint(100 + own * (picture[100:180, 200:280] - 100.0)).astype(np.uint8)
    scene = np.rint(100 + theirs * (picture - 100.0)).astype(np.uint8)

    (hit,) = find(template, scene, mode="pyramid", max_hits=1, detail=-1)

    assert place(hit) == pytest.approx((239.5, 139.5), abs=0.1)


@pytest.mark.parametrize("mode", MODES)
def test_many_templates_are_found_as_one_by_one(texture, mode):  # NCC-19
    scene = texture(200, 300)
    parts = [scene[7 * n : 8 * n + 20, 9 * n : 10 * n + 24] for n in range(12)]

    hits = find(parts, scene, mode=mode, threshold=0.9)

    assert [hit.template for hit in hits] == list(range(12))
    for part, hit in zip(parts, hits, strict=True):
        (alone,) = find(part, scene, mode=mode, threshold=0.9)
        assert place(hit) == pytest.approx(place(alone), abs=1e-3)
        assert hit.score == pytest.approx(1, abs=1e-5)


def test_threshold_of_one_accepts_exact_copies():  # NCC-10
    for seed in range(20):
        scene = np.random.default_rng(seed).integers(0, 256, (120, 160)).astype(np.uint8)

        hits = find(scene[30:50, 40:64], scene, threshold=1.0)

        assert [(round(h.x - 11.5), round(h.y - 9.5)) for h in hits] == [(40, 30)]


@pytest.mark.parametrize("mode", MODES)
def test_every_instance_is_found_once(texture, mode):  # NCC-11
    scene = texture(300, 400, seed=1, sigma=20).astype(float)
    part = texture(24, 32, seed=2).astype(float)
    corners = [(10, 20), (10, 60), (120, 200), (150, 205), (270, 360)]
    for y, x in corners:
        scene[y : y + 24, x : x + 32] = part

    hits = find(part, scene, threshold=0.8, mode=mode)

    found = [(h.y - 11.5, h.x - 15.5) for h in hits]
    np.testing.assert_allclose(found, corners, atol=0.5)  # equal scores in reading order
    assert all(h.score >= 0.999 for h in hits)
    assert len(find(part, scene, max_hits=3)) == 3


def test_allowed_overlap_decides_between_near_instances(texture):  # NCC-11
    scene = texture(100, 140, seed=1, sigma=20).astype(float)
    part = np.tile(texture(24, 16, seed=2), (1, 2)).astype(float)
    scene[30:54, 40:72] = part
    scene[30:54, 56:88] = part

    for angles in ((0, 0), (-10, 10)):
        assert len(find(part, scene, overlap=0.2, angles=angles)) == 1
        assert len(find(part, scene, overlap=0.5, angles=angles)) == 2


@pytest.mark.parametrize("angles", [(0, 0), (-10, 10)])
def test_a_hidden_copy_beside_a_whole_one_is_found(texture, angles):  # NCC-11
    scene = texture(300, 300, 1, sigma=20)
    for corner in (100, 130):  # the second hides a corner of the first
        scene[corner : corner + 64, corner : corner + 64] = texture(64, 64, 2)

    hits = find(texture(64, 64, 2), scene, angles=angles, detail=-1)

    assert [hit.x for hit in hits] == [pytest.approx(161.5, abs=0.1), pytest.approx(131.5, abs=1)]
    assert hits[0].score > 0.99
    assert hits[1].score < 0.9


def test_overlap_is_intersection_over_union():
    size = (20, 40)

    assert overlap(Pose(5, 5), Pose(5, 5), size) == pytest.approx(1)
    assert overlap(Pose(0, 0), Pose(20, 0), size) == pytest.approx(1 / 3)
    assert overlap(Pose(0, 0), Pose(0, 20), size) == 0
    assert overlap(Pose(0, 0, 90), Pose(0, 20, 90), size) == pytest.approx(1 / 3)
    assert overlap(Pose(0, 0), Pose(0, 0, scale=0.5), size) == pytest.approx(1 / 4)


@pytest.mark.parametrize("mode", MODES)
def test_absent_template_gives_no_hit_and_its_best_score(texture, mode):  # NCC-12, NCC-20
    result = search(texture(200, 200, 1)[80:112, 80:112], texture(200, 200, 2), mode=mode)

    assert result.hits == []
    assert result.reports[0].status == "searched"
    assert 0.3 < result.reports[0].best_rejected < 0.5


def test_bars_on_white_are_told_apart():  # NCC-12
    across, along = np.full((60, 60), 255.0), np.full((60, 60), 255.0)
    across[28:32, 20:40] = 0
    along[20:40, 28:32] = 0

    assert search(across, along).reports[0].best_rejected < 0.3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sigma", [1.5, 2.5])
@pytest.mark.parametrize("shift", [(0.3, -0.4), (0.5, 0.5), (-0.25, 0.1)])
def test_places_are_right_below_the_pixel(texture, mode, sigma, shift):  # NCC-13
    scene = texture(200, 240, sigma=sigma).astype(float)
    y, x = np.mgrid[80:111, 100:131].astype(float)
    template = map_coordinates(scene, (y + shift[1], x + shift[0]), order=3)

    (hit,) = find(template, scene, mode=mode)

    assert place(hit) == pytest.approx((115 + shift[0], 95 + shift[1]), abs=0.05)


@pytest.mark.parametrize("corner", [(0, 0), (0, 64), (44, 0), (44, 64), (0, 20)])
def test_hits_at_the_border_are_not_refined_across_it(texture, corner):  # NCC-14
    scene = texture(60, 80)
    y, x = corner

    (hit,) = find(scene[y : y + 16, x : x + 16], scene, max_hits=1)

    assert hit.subpixel == (x not in (0, 64), y not in (0, 44))
    assert place(hit) == pytest.approx((x + 7.5, y + 7.5), abs=0.02)


def test_map_of_one_row_is_refined_along_it_only(texture):  # NCC-14
    scene = texture(30, 80)

    (hit,) = find(scene[:, 20:50], scene)

    assert hit.subpixel == (True, False)
    assert place(hit) == pytest.approx((34.5, 14.5), abs=0.02)


def test_blocky_picture_is_found_in_place(texture):  # NCC-14
    scene = np.repeat(np.repeat(texture(20, 25), 4, axis=0), 4, axis=1)

    (hit,) = find(scene[16:32, 24:40], scene, max_hits=1)

    assert place(hit) == pytest.approx((31.5, 23.5), abs=0.2)


def test_plateau_has_no_place_below_the_pixel():  # NCC-14
    offset, refined = peak_offset(np.ones((5, 5), np.float32), (2, 2))

    assert offset == (0, 0)
    assert refined == (False, False)


def test_offset_of_a_parabola_is_its_top():
    y, x = np.indices((9, 9))
    surface = 1 - 0.01 * (y - 4.3) ** 2 - 0.02 * (x - 3.8) ** 2

    offset, refined = peak_offset(surface.astype(np.float32), (4, 4))

    assert offset == pytest.approx((0.3, -0.2), abs=1e-3)
    assert refined == (True, True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("angle", [15, 30, 45, 90, -77.3, 180])
def test_turned_template_is_found_with_its_angle(texture, mode, angle):  # NCC-15
    picture = texture(300, 300, sigma=2.5).astype(float)
    if mode == "exhaustive":
        picture = picture[80:230, 85:235]
    half_y, half_x = (picture.shape[0] // 2, picture.shape[1] // 2)
    template = picture[half_y - 30 : half_y + 31, half_x - 30 : half_x + 31]
    angles = (-180, 180) if mode == "pyramid" else (angle - 20, angle + 20)

    (hit,) = find(template, turned(picture, (half_x, half_y), angle), angles=angles, mode=mode)

    assert (hit.angle_degrees - angle + 180) % 360 - 180 == pytest.approx(0, abs=0.1)
    assert place(hit) == pytest.approx((half_x, half_y), abs=0.05)
    assert hit.score >= 0.99


def test_positive_angles_are_counter_clockwise_on_the_screen(texture):  # NCC-15
    template = texture(40, 40, sigma=2.5)
    scene = texture(120, 120, seed=3, sigma=2.5)
    scene[40:80, 40:80] = np.rot90(template)

    (hit,) = find(template, scene, angles=(-180, 180))

    assert hit.angle_degrees == pytest.approx(90, abs=0.3)
    top_left = hit.corners[0]  # lands at the bottom left
    np.testing.assert_allclose(top_left, (39.5, 79.5), atol=0.3)


@pytest.mark.parametrize("scale", [0.8, 0.9, 0.95, 1.05, 1.1, 1.25])
def test_scaled_template_is_found_with_its_scale(texture, scale):  # NCC-16
    picture = texture(300, 300, sigma=2.5).astype(float)
    template = picture[120:181, 130:191]

    result = search(template, turned(picture, (160, 150), scale=scale), scales=(0.7, 1.4))

    (hit,) = result.hits
    assert hit.scale == pytest.approx(scale, rel=0.005)
    assert place(hit) == pytest.approx((160, 150), abs=0.1)
    assert hit.score >= 0.95
    assert result.reports[0].poses > 5


@pytest.mark.parametrize("scales", [(0.7, 1.4), (0.5, 0.6), (1, 1)])
def test_scales_are_tried_in_a_geometric_row_that_moves_no_corner_far(scales):  # NCC-16
    size = 61, 61

    tried = np.array([s for _, s in Ranges((0, 0), scales, False).poses(size)])

    assert (tried[0], tried[-1]) == pytest.approx(scales)
    ratios = tried[1:] / tried[:-1]
    np.testing.assert_allclose(ratios, ratios[:1].repeat(len(ratios)), rtol=1e-12)
    corner_steps = np.diff(tried) * np.hypot(*size) / 2
    assert len(corner_steps) == 0 or corner_steps.max() <= 1.4 * np.sqrt(scales[1] / scales[0])


def test_angle_and_scale_are_found_together(texture):
    picture = texture(200, 240, sigma=2.5).astype(float)
    scene = turned(picture, (120, 100), 33, 1.2)

    (hit,) = find(picture[70:131, 90:151], scene, angles=(20, 50), scales=(1, 1.4))

    assert (hit.angle_degrees, hit.scale) == pytest.approx((33, 1.2), abs=0.1)


def test_poses_that_do_not_fit_are_left_out(texture):  # NCC-16
    scene = texture(60, 70, sigma=2.5)

    (hit,) = find(scene[2:58, 4:64], scene, scales=(0.8, 2))

    assert hit.scale == pytest.approx(1, abs=0.01)


def test_colour_tells_a_red_square_from_a_grey_one(texture):  # NCC-17
    pattern = texture(40, 40).astype(np.float32)
    scene = np.zeros((60, 120, 3), np.float32)
    scene[10:50, 10:50] = (0.3 * pattern)[..., None]
    scene[10:50, 70:110, 0] = pattern
    red = scene[10:50, 70:110]

    best, other = find(red, scene, threshold=0.5)

    assert place(best) == pytest.approx((89.5, 29.5), abs=0.05)
    assert place(other) == pytest.approx((29.5, 29.5), abs=0.05)
    assert other.score == pytest.approx(1 / np.sqrt(3), abs=1e-3)  # one channel of three agrees
    assert best.score - other.score >= 0.05


def test_grey_and_colour_meet_in_grey(texture):  # NCC-17
    grey = texture(80, 100).astype(np.float32)
    colour = np.dstack([grey] * 3)

    for template, scene in ((grey, colour), (colour, grey)):
        (hit,) = find(template[20:50, 30:70], scene)
        assert place(hit) == pytest.approx((49.5, 34.5), abs=0.02)


def test_any_source_of_pixels_will_do(texture, tmp_path):  # NCC-18
    scene = texture(64, 64)
    part = scene[20:36, 30:46]
    path = tmp_path / "part.png"
    PIL.Image.fromarray(part).save(path)
    sources = [path, str(path), PIL.Image.fromarray(part), torch.from_numpy(part.copy())]
    sources += [part.astype(d) for d in (np.int16, np.uint16, np.float16, np.float64)]

    hits = find(sources, scene)

    assert [h.template for h in hits] == list(range(len(sources)))
    for hit in hits:
        assert (*place(hit), hit.score) == pytest.approx((37.5, 27.5, 1), abs=0.02)


def test_many_templates_give_what_single_calls_give(texture):  # NCC-19
    scene = texture(360, 640)
    sides = (32, 48, 64, 128)
    parts = [scene[s : 2 * s, 2 * s : 3 * s] for s in sides]

    result = search([*parts, texture(800, 800)], scene)

    for number, part in enumerate(parts):
        one = find(part, scene)
        many = [h for h in result.hits if h.template == number]
        assert [place(h) for h in many] == [pytest.approx(place(h), abs=1e-4) for h in one]
        assert [h.score for h in many] == pytest.approx([h.score for h in one], abs=1e-6)
    report = result.reports[-1]
    assert report.status == "too large"
    assert report.reason == "a template of 800 x 800 pixels does not fit a scene of 360 x 640"


@pytest.mark.parametrize("options", [{}, {"angles": (-10, 10)}, {"scales": (1.5, 2)}])
def test_a_single_oversize_template_is_an_error(texture, options):  # NCC-04
    with pytest.raises(ValueError, match="90 x 9 pixels does not fit a scene of 50 x 50"):
        find(texture(90, 9), texture(50, 50), **options)


def test_flat_template_is_reported(texture):  # NCC-01, NCC-07
    mask = np.ones((10, 10))
    mask[3, 3] = 0
    template = np.full((10, 10), 5.0)
    template[3, 3] = 9

    for result in (
        search(np.full((10, 10), 64, np.uint8), texture(40, 50)),
        search(template, texture(40, 50), mask),
    ):
        assert result.hits == []
        assert result.reports[0].status == "flat"


def test_masked_template_ignores_what_is_outside(texture):  # NCC-08
    scene = texture(120, 150)
    template = scene[40:70, 60:100].copy()
    mask = np.ones(template.shape, np.uint8)
    mask[:, :15] = 0
    template[:, :15] = 0

    (hit,) = find(template, scene, mask)

    assert place(hit) == pytest.approx((79.5, 54.5), abs=0.02)
    assert hit.score == pytest.approx(1, abs=1e-6)
    assert find([template, scene[:9, :9]], scene, [mask, None])[0].score == pytest.approx(hit.score)


def test_masked_template_is_found_turned(texture):
    picture = texture(160, 160, sigma=2.5).astype(float)
    y, x = np.indices((61, 61)) - 30
    disc = np.hypot(x, y) <= 28
    template = np.where(disc, picture[50:111, 50:111], 0)

    (hit,) = find(template, turned(picture, (80, 80), -40), disc, angles=(-90, 90))

    assert hit.angle_degrees == pytest.approx(-40, abs=0.2)
    assert place(hit) == pytest.approx((80, 80), abs=0.1)


def test_a_turned_template_climbs_along_an_edge(texture):
    edge = 180 / (1 + np.exp(-(np.arange(300) - 150) / 2))
    scene = edge + 0.2 * texture(300, 300, sigma=2)
    template = make_template(turned(scene, (150, 150), 35)[118:183, 118:183], None)
    pyramid, ranges = Pyramid(scene), Ranges((-180.0, 180.0), (1.0, 1.0), either=False)
    survey = make_survey(template, pyramid, ranges, "pyramid", 0.7)
    settle = Settler(template, pyramid, ranges, survey)

    for start in (-25, -14, 9, 25):
        settled = settle(Pose(150, 150 + start, -33), 0.7)

        assert (settled.pose.x, settled.pose.y) == pytest.approx((150, 150), abs=0.1)
        assert settled.pose.angle_degrees == pytest.approx(-35, abs=0.1)


def test_ranges_contain_what_was_asked_for_and_little_more():
    ranges = Ranges((170.0, 200.0), (0.8, 1.2), either=False)

    inside = [(170, 1.0), (-170, 1.0), (200, 0.8), (-160, 1.2), (168, 0.78), (202, 1.25)]
    assert all(ranges.contain(Pose(0, 0, angle, scale)) for angle, scale in inside)
    outside = [(150, 1.0), (-150, 1.0), (0, 1.0), (180, 0.7), (180, 1.4)]
    assert not any(ranges.contain(Pose(0, 0, angle, scale)) for angle, scale in outside)
    assert Ranges((-180.0, 180.0), (1.0, 1.0), either=False).contain(Pose(0, 0, 1234.5))


def test_hits_lie_in_the_ranges(texture):
    picture = texture(200, 200, sigma=4).astype(float)
    template = make_template(picture[68:133, 68:133], None)
    pyramid, start = Pyramid(turned(picture, (100, 100), 0, 1.2)), Pose(100, 100, 0, 1.1)

    settled = []
    for most in (1.1, 1.3):
        ranges = Ranges((0.0, 0.0), (0.9, most), either=False)
        survey = make_survey(template, pyramid, ranges, "pyramid", 0.7)
        settled.append(Settler(template, pyramid, ranges, survey)(start, 0.7))

    assert settled[0].pose.scale <= 1.1 * 1.05
    assert settled[0].score < 0.99
    assert settled[1].pose.scale == pytest.approx(1.2, rel=0.01)
    assert settled[1].score == pytest.approx(1, abs=0.01)


def test_what_is_turned_too_far_is_found_as_far_as_was_asked_for(texture):
    picture = texture(300, 300, sigma=4).astype(float)
    scene = turned(picture, (150, 150), 12)

    (hit,) = find(picture[118:183, 118:183], scene, threshold=0.6, angles=(-6, 6), max_hits=1)

    assert place(hit) == pytest.approx((150, 150), abs=2)
    assert 6 <= hit.angle_degrees <= 9
    assert hit.score < 0.99


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.astype(np.uint16) * 257,
        lambda t: t * 2.0,
        lambda t: t - 128.0,
        lambda t: t.astype(np.int16) - 128,
        lambda t: t / 255,
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_template_of_any_range_is_found_in_bytes(texture, change, mode):  # NCC-18
    scene = texture(400, 500)

    (hit,) = find(change(scene[100:180, 200:290]), scene, mode=mode)

    assert place(hit) == pytest.approx((244.5, 139.5), abs=0.02)
    assert hit.score == pytest.approx(1, abs=1e-5)


def test_all_peaks_that_a_level_leaves_are_followed(texture):
    scene = texture(1080, 1920, 7, sigma=12)
    part = texture(64, 64, 8)
    dull = np.kron(part.reshape(16, 4, 16, 4).mean((1, 3)), np.ones((4, 4))).astype(np.uint8)
    for number in range(25):
        y, x = 80 * (number // 5) + 8, 80 * (number % 5) + 8
        scene[y : y + 64, x : x + 64] = dull
    scene[1002:1066, 1702:1766] = part  # half a pixel of the level off its grid

    result = search(part, scene, mode="pyramid", max_hits=1)

    assert result.reports[0].factor == 4
    assert place(result.hits[0]) == pytest.approx((1733.5, 1033.5), abs=0.05)


@pytest.mark.parametrize("seed", [0, 2, 3, 5])
def test_second_score_is_that_of_another_place(texture, seed):
    scene = texture(600, 1200, seed + 5, sigma=12)
    stripes = np.tile(texture(64, 18, seed, sigma=2), (1, 8))
    scene[102:166, 150:294] = 0.5 * stripes + 0.5 * texture(64, 144, seed + 3, sigma=2)
    part = scene[102:166, 202:266]

    every, (followed,) = (search(part, scene, mode=mode, max_hits=1).hits for mode in MODES)

    assert followed.second_score <= every[0].second_score  # of a stripe beside it: more


@pytest.mark.parametrize("offset", [(0.033, -0.047), (0.27, 0.414), (-0.5, 0.0)])
def test_peaks_are_placed_to_a_hundredth_of_a_pixel(offset):
    y, x = np.indices((9, 9)) - 4
    scores = np.exp(-((y - offset[0]) ** 2 + (x - offset[1]) ** 2) / (2 * 1.5**2))

    found, fine = peak_offset(scores.astype(np.float32), (4, 4))

    assert found == pytest.approx(offset, abs=0.01)
    assert fine == (True, True)


def test_alpha_and_single_channels_are_taken_for_what_they_are(texture):
    colours = np.dstack([texture(90, 120, seed) for seed in range(3)])
    alpha = np.dstack([colours, texture(90, 120, 9)])
    single = colours[..., :1]

    (hit,) = find(alpha[20:50, 30:70], alpha)
    (grey,) = find(single[20:50, 30:70], single)

    assert place(hit) == pytest.approx((49.5, 34.5), abs=0.02)
    assert place(grey) == pytest.approx((49.5, 34.5), abs=0.02)
    (plain,) = find(colours[20:50, 30:70], colours)
    assert hit.score == pytest.approx(plain.score, abs=1e-6)
    assert hit.second_score == pytest.approx(plain.second_score, abs=1e-3)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_bytes_of_a_level_are_its_pixels_rounded(texture, factor):
    pytest.importorskip("cv2")
    picture = np.dstack([texture(101, 122, seed) for seed in range(3)])
    pyramid = Pyramid(picture)

    rounded = pyramid.bytes(factor)

    assert rounded.dtype == np.uint8
    assert np.abs(rounded - pyramid.level(factor)).max() <= 1  # at most two halves
    assert Pyramid(picture.astype(np.float32)).bytes(factor) is None


def test_a_template_that_fits_as_it_is_but_not_turned_says_so(texture):
    with pytest.raises(ValueError, match="turned and scaled as asked for, does not fit a scene"):
        find(texture(16, 16), texture(16, 16), angles=(-5, 5))


def test_detail_under_a_mask_ignores_brightness_and_what_lies_outside(texture):
    picture, other = texture(120, 160), texture(120, 160, 1)
    y, x = np.indices((60, 60)) - 29.5
    disc = np.hypot(x, y) <= 25
    scene = other.astype(float)
    scene[30:90, 50:110] = np.where(disc, 0.4 * picture[30:90, 50:110] + 90, scene[30:90, 50:110])

    (hit,) = find(picture[30:90, 50:110], scene, disc, max_hits=1)

    assert place(hit) == pytest.approx((79.5, 59.5), abs=0.1)
    assert hit.detail > 0.97


def test_detail_of_long_templates_needs_no_large_matrix(texture):
    scene = texture(80, 3000)
    detail_of_one._blur.cache_clear()

    (hit,) = find(scene[20:60, 100:2900], scene, max_hits=1)

    assert hit.detail == pytest.approx(1, abs=0.01)
    assert detail_of_one._blur.cache_info().misses == 1  # of its 40 rows


def test_templates_without_a_pixel_are_told(texture):
    with pytest.raises(matcher.images.ImageError, match="the array has no pixels"):
        find(np.zeros((0, 4)), texture(20, 20))
    with pytest.raises(ValueError, match="the template has no finite pixel"):
        find(np.full((9, 9), np.nan), texture(20, 20))


def test_masks_must_be_as_many_as_templates(texture):
    with pytest.raises(ValueError, match="there are 1 masks for 2 templates"):
        find([texture(9, 9)] * 2, texture(20, 20), [np.ones((9, 9))])


def test_pixels_that_are_not_finite_do_not_hide_the_template(texture):  # NCC-22
    scene = texture(300, 300).astype(np.float32)
    template = scene[150:211, 100:161].copy()
    scene[5, 5], scene[180, 130] = np.nan, np.inf

    for options in ({"mode": "exhaustive"}, {"mode": "pyramid"}, {"angles": (-20, 20)}):
        (hit,) = find(template, scene, **options)
        assert place(hit) == pytest.approx((130, 180), abs=0.05)
        assert hit.score > 0.99


def test_equal_peaks_come_in_reading_order_and_are_marked(texture):  # NCC-25
    y, x = np.indices((160, 160)) // 16
    board = ((x + y) % 2 * 255).astype(np.uint8)

    hits = find(board[:32, :32], board, threshold=0.999, mode="exhaustive")

    places = [(round(h.y, 4), round(h.x, 4)) for h in hits]
    assert len(hits) == 41
    assert places == sorted(places)
    assert all(h.second_score == pytest.approx(1, abs=1e-5) for h in hits)


def test_opposite_contrast_is_found_on_request(texture):  # NCC-26
    picture = texture(120, 160, sigma=3).astype(float)
    template = picture[30:60, 40:80]

    assert find(template, -picture) == []
    for options in ({}, {"mode": "pyramid"}, {"angles": (-10, 10)}):
        (hit,) = find(template, -picture, contrast="either", **options)
        assert place(hit) == pytest.approx((59.5, 44.5), abs=0.05)
        assert hit.score == pytest.approx(-1, abs=1e-4)


def test_pyramid_does_not_trust_levels_that_lose_the_template():
    noise = np.random.default_rng(0).integers(0, 256, (200, 260)).astype(np.uint8)

    result = search(noise[50:114, 70:134], noise, mode="pyramid")

    assert result.reports[0].factor == 1
    assert place(result.hits[0]) == pytest.approx((101.5, 81.5), abs=0.02)


def test_pyramid_finds_what_exhaustive_search_finds(texture):
    generator = np.random.default_rng(4)
    for seed in range(10):
        scene = texture(270, 480, seed=seed)
        y, x = generator.integers(0, 200), generator.integers(0, 400)
        template = scene[y : y + 64, x : x + 64]

        (fast,), (slow,) = (find(template, scene, mode=mode) for mode in MODES)

        assert place(fast) == pytest.approx(place(slow), abs=0.01)


def test_full_circle_search_is_accurate_over_random_trials(texture):
    generator = np.random.default_rng(0)
    for seed in range(6):
        scene = texture(240, 320, seed=seed).astype(float)
        centre = generator.uniform((60, 60), (260, 180))
        angle = generator.uniform(-180, 180)
        y, x = np.indices((64, 64)) - 31.5
        linear = Pose(0, 0, angle).scene_from_template
        places = np.einsum("ij,jhw->ihw", linear, np.stack([x, y])) + centre[:, None, None]
        template = map_coordinates(scene, places[::-1], order=3)

        (hit,) = find(template, scene, angles=(-180, 180))

        assert abs((hit.angle_degrees - angle + 180) % 360 - 180) <= 0.3
        assert place(hit) == pytest.approx(tuple(centre), abs=0.5)


def test_no_detection_has_the_fields_of_a_full_result(texture):  # NCC-20
    hits = find(texture(30, 30, seed=5), texture(90, 90), threshold=0.9)

    assert hits == []
    table = np.array([(h.x, h.y, h.score) for h in hits], np.float64).reshape(-1, 3)
    assert table.shape == (0, 3)
    assert {"x", "y", "score", "corners"} <= {f.name for f in fields(TemplateHit)}
    assert matcher.find is find


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.1}, "threshold must be above 0 and at most 1, not 1.1"),
        ({"threshold": 0}, "threshold must be above 0 and at most 1, not 0"),
        ({"max_hits": 0}, "max_hits must be at least 1, not 0"),
        ({"overlap": 1}, r"overlap must be in \[0, 1\), not 1"),
        ({"mode": "fast"}, "mode must be exhaustive, pyramid or auto, not 'fast'"),
        ({"contrast": "inverse"}, "contrast must be same or either, not 'inverse'"),
        ({"angles": (10, -10)}, r"angles must rise, not \(10, -10\)"),
        ({"scales": (0, 1)}, r"scales must be above 0 and rise, not \(0, 1\)"),
        ({"detail": 2}, r"detail must be in \[-1, 1\], not 2"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FindOptions(**options)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("colour", [False, True])
def test_shading_alike_is_no_find_where_detail_differs(texture, kind, colour):  # NCC-12
    shade = np.linspace(0, 160, 300)[None] + np.linspace(0, 40, 260)[:, None]
    scene = shade + 0.12 * texture(260, 300, seed=1)
    other = shade + 0.12 * texture(260, 300, seed=2)
    scene, other = scene.astype(kind), other.astype(kind)
    template = other[100:164, 120:200]
    if colour:
        scene, template = np.stack([scene] * 3, -1), np.stack([template] * 3, -1)

    assert find(template, scene) == []
    (report,) = search(template, scene).reports
    assert report.best_rejected > 0.9
    shaded = find(template, scene, detail=-1)
    assert shaded[0].score > 0.9
    assert abs(shaded[0].detail) < 0.2

    (hit,) = find(scene[100:164, 120:200], scene, angles=(-180, 180), max_hits=1)
    assert hit.detail > 0.9


def test_detail_of_a_template_without_any_agrees():
    y, x = np.mgrid[:90, :120]
    scene = 100 * np.exp(-((x - 70.0) ** 2 + (y - 40.0) ** 2) / 2 / 30**2)
    plane = scene[30:50, 20:50]
    slope = np.broadcast_to(np.linspace(0, 255, 120), (90, 120))

    assert find(plane, scene, max_hits=1)[0].detail == pytest.approx(1, abs=1e-6)
    assert find(slope[:20, :30], slope, max_hits=1)[0].detail == 1
    (negative,) = find(255 - slope[:20, :30], slope, contrast="either", max_hits=1)
    assert (negative.score, negative.detail) == (pytest.approx(-1, abs=1e-5), 1)


def test_negatives_have_the_detail_of_their_contrast(texture):
    scene = texture(120, 150)

    (hit,) = find(255 - scene[30:70, 40:90], scene, contrast="either", max_hits=1)

    assert hit.score == pytest.approx(-1, abs=1e-5)
    assert hit.detail == pytest.approx(1, abs=1e-3)


def test_unknown_options_are_named(texture):
    with pytest.raises(TypeError, match="treshold"):
        find(texture(9, 9), texture(20, 20), treshold=0.5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_shrunk_pictures_are_means_of_squares(texture, dtype):
    picture = texture(41, 50).astype(dtype)

    for factor in (2, 4):
        rows, columns = 41 // factor, 50 // factor
        squares = picture[: rows * factor, : columns * factor].astype(float)
        means = squares.reshape(rows, factor, columns, factor).mean(axis=(1, 3))
        np.testing.assert_allclose(shrink(picture, factor), means, rtol=1e-6)


def test_shrunk_template_keeps_its_centre(texture):
    small = make_template(texture(43, 66), None).shrink(4)

    assert small.size == (10, 16)
    # 43 rows lose one above and two below, 66 columns one on each side
    assert small.centre == pytest.approx(((33 - 1) / 4 - 0.5, (21.5 - 1) / 4 - 0.5))
