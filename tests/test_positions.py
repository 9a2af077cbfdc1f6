"""Normalised points, encodings to add, rotations to turn by."""

from __future__ import annotations

import pytest
import torch

from matcher.nn.positions import (
    KeypointEncoder,
    RotaryEncoding,
    normalise_points,
    rotate,
    sinusoidal,
)

WIDE, TALL = torch.tensor([[640.0, 200.0]]), torch.tensor([[200.0, 640.0]])


def test_corners_are_symmetric_and_within_one() -> None:  # KPT-08
    corners = torch.tensor([[[0.0, 0.0], [640, 0], [0, 200], [640, 200]]])

    found = normalise_points(corners, WIDE)

    assert found.abs().amax() == 1
    torch.testing.assert_close(found[0, 0], -found[0, 3])
    torch.testing.assert_close(found[0, 1], -found[0, 2])
    torch.testing.assert_close(found[0, 3], torch.tensor([1.0, 200 / 640]))


def test_turning_the_image_turns_the_points() -> None:  # KPT-08
    points = torch.rand(1, 9, 2) * WIDE

    torch.testing.assert_close(
        normalise_points(points.flip(2), TALL), normalise_points(points, WIDE).flip(2)
    )


def test_each_image_of_a_batch_has_its_size_and_the_share_its_effect() -> None:
    points, sizes = torch.rand(2, 5, 2) * 200, torch.cat([WIDE, TALL])

    found = normalise_points(points.double(), sizes, 0.7)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found[1], (points[1] - torch.tensor([100.0, 320])) / (0.7 * 640))


def test_points_are_normalised_by_their_image_whatever_points_there_are() -> None:  # ATT-08
    points = torch.rand(1, 9, 2) * WIDE
    points[0, -1] = WIDE[0]

    assert torch.equal(
        normalise_points(points, WIDE)[:, :-1], normalise_points(points[:, :-1], WIDE)
    )


def test_sizes_that_do_not_fit_the_points_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes must be \(B 2\) with B=2, N=5, not \(3, 2\)"):
        normalise_points(torch.zeros(2, 5, 2), torch.ones(3, 2))


@pytest.mark.parametrize("released", [False, True])
def test_waves_are_those_of_loftr(released: bool) -> None:
    encoding = pytest.importorskip("kornia.feature.loftr.utils.position_encoding")
    twin = encoding.PositionEncodingSine(64, (24, 40), temp_bug_fix=not released)

    found = sinusoidal(24, 40, 64, released=released)

    torch.testing.assert_close(found, twin.pe[0, :, :24, :40], rtol=0, atol=1e-5)


def test_waves_have_no_largest_size() -> None:
    large = sinusoidal(3, 700, 8)

    torch.testing.assert_close(large[:, :2, :5], sinusoidal(2, 5, 8))
    assert large.shape == (8, 3, 700)
    assert large[0, 0, 699] == torch.tensor(700.0).sin()


def test_waves_come_four_at_a_time() -> None:
    with pytest.raises(ValueError, match="channels must be a multiple of 4, not 6"):
        sinusoidal(2, 2, 6)


def test_only_the_difference_of_two_positions_counts() -> None:
    encoding = RotaryEncoding(16)
    query, key = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 1, 16)
    place0, place1, move = torch.rand(1, 1, 2), torch.rand(1, 1, 2), torch.tensor([0.3, -0.8])

    def score(at0, at1):
        return (rotate(query, encoding(at0)) * rotate(key, encoding(at1))).sum(-1)

    torch.testing.assert_close(
        score(place0, place1), score(place0 + move, place1 + move), rtol=0, atol=1e-4
    )


def test_turning_keeps_lengths_and_type() -> None:
    rotation = RotaryEncoding(16)(torch.rand(2, 7, 2))
    tokens = torch.randn(2, 4, 7, 16)

    torch.testing.assert_close(rotate(tokens, rotation).norm(dim=-1), tokens.norm(dim=-1))
    assert rotate(tokens.half(), rotation).dtype == torch.float16


def test_rotations_are_those_of_lightglue_and_float32_under_autocast() -> None:
    lightglue = pytest.importorskip("kornia.feature.lightglue")
    encoding, twin = RotaryEncoding(32), lightglue.LearnableFourierPositionalEncoding(2, 32)
    encoding.load_state_dict(twin.state_dict())
    points, tokens = torch.rand(2, 6, 2), torch.randn(2, 3, 6, 32)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        rotation = encoding(points)

    assert rotation.dtype == torch.float32
    wanted = lightglue.apply_cached_rotary_emb(twin(points), tokens)
    torch.testing.assert_close(rotate(tokens, rotation), wanted)


def test_channels_are_turned_in_pairs() -> None:
    with pytest.raises(ValueError, match="channels must be even, not 7"):
        RotaryEncoding(7)


def test_keypoints_are_encoded_one_by_one() -> None:
    encoder = KeypointEncoder(16, (8, 12)).eval()
    points, scores = torch.rand(2, 5, 2), torch.rand(2, 5)
    order = torch.randperm(5)

    found = encoder(points, scores)

    assert found.shape == (2, 5, 16)
    torch.testing.assert_close(encoder(points[:, order], scores[:, order]), found[:, order])
    assert encoder(points[:, :0], scores[:, :0]).shape == (2, 0, 16)


def test_the_keypoint_encoder_has_the_published_size() -> None:
    weights = sum(weight.numel() for weight in KeypointEncoder().parameters())

    layers = [(3, 32), (32, 64), (64, 128), (128, 256), (256, 256)]
    norms = 2 * sum((32, 64, 128, 256))
    assert weights == sum(i * o + o for i, o in layers) + norms
    assert not KeypointEncoder().layers[-1].bias.any()
