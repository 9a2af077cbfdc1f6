"""Blocks for backbones, and sampling at computed places."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor

from matcher.nn.vision import ChannelGate, NonLocalBlock, SpatialGate, gate, sample, warp_patches


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["none", "se", "cbam", "non-local"])
def test_blocks_keep_the_shape_and_pass_gradients(name: str) -> None:
    block, features = gate(name, 32), noise(2, 32, 5, 6).requires_grad_()

    found = block(features)
    found.square().sum().backward()

    assert found.shape == features.shape
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_an_unknown_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no gate 'eca'; there are none, se, cbam, non-local"):
        gate("eca", 8)


def test_a_new_non_local_block_changes_nothing() -> None:
    features = noise(2, 8, 4, 5)

    torch.testing.assert_close(NonLocalBlock(8)(features), features)


def test_a_non_local_block_is_the_weighted_mean_of_its_paper() -> None:
    block, features = NonLocalBlock(8), noise(1, 8, 3, 4)
    torch.nn.init.normal_(block.merge.weight)

    found = block(features)

    query, key, value = (f(features).flatten(2)[0] for f in (block.query, block.key, block.value))
    weights = (query.T @ key).softmax(1)  # (12, 12)
    message = (value @ weights.T).unflatten(1, (3, 4))[None]
    torch.testing.assert_close(found, features + block.merge(message), rtol=1e-4, atol=1e-5)


def test_a_channel_gate_scales_channels_by_their_means() -> None:
    block, features = ChannelGate(32), noise(2, 32, 4, 5)

    found = block(features)

    shares = (found / features).flatten(2)
    torch.testing.assert_close(shares.amin(2), shares.amax(2), rtol=1e-4, atol=1e-5)
    assert ((shares > 0) & (shares < 1)).all()
    mixed = features.flatten(2)[..., torch.randperm(20)].unflatten(2, (4, 5))
    torch.testing.assert_close((block(mixed) / mixed)[..., 0, 0], shares[..., 0])


def test_only_the_gate_with_maxima_sees_a_peak_that_keeps_the_mean() -> None:
    features = torch.zeros(1, 16, 4, 4)
    peaked = features.clone()
    peaked[:, :, 0, 0], peaked[:, :, 3, 3] = 5.0, -5.0

    for maxima in (False, True):
        block = ChannelGate(16, 4, maxima=maxima)
        torch.nn.init.constant_(block.excite[2].weight, 0.05)
        torch.nn.init.constant_(block.excite[0].weight, 0.05)
        shares = [block(each + 1)[0, 0, 1, 1] for each in (features, peaked)]
        assert torch.isclose(*shares) != maxima


def test_a_spatial_gate_scales_cells_whole() -> None:
    features = noise(2, 6, 9, 8)

    shares = SpatialGate()(features) / features

    torch.testing.assert_close(shares.amin(1), shares.amax(1), rtol=1e-4, atol=1e-5)
    assert ((shares > 0) & (shares < 1)).all()


def test_samples_are_bilinear_between_the_centres_of_cells() -> None:
    features = noise(2, 3, 7, 9)
    points = torch.rand(2, 40, 2) * torch.tensor([12.0, 10.0]) - 2  # some lie outside

    found = sample(features, points)

    for item in range(2):
        places = points[item].flip(1).T.numpy()
        wanted = [map_coordinates(c, places, order=1, mode="nearest") for c in features[item]]
        torch.testing.assert_close(
            found[item].T, torch.stack([torch.from_numpy(w) for w in wanted]), rtol=0, atol=1e-5
        )
    assert sample(features, points[:, :0]).shape == (2, 0, 3)


def test_gradients_of_samples_are_right_in_map_and_place() -> None:
    features = noise(1, 2, 5, 6).double().requires_grad_()
    points = torch.tensor([[[1.3, 2.6], [3.7, 0.4]]]).double().requires_grad_()

    assert torch.autograd.gradcheck(sample, (features, points))


def test_the_identity_cuts_the_patch_as_it_is() -> None:
    features, centres = noise(1, 2, 9, 10), torch.tensor([[[4.0, 5.0]]])

    found = warp_patches(features, centres, torch.eye(2)[None, None], 2)

    torch.testing.assert_close(found[0, 0], features[0, :, 3:8, 2:7])


def test_a_quarter_turn_turns_the_patch() -> None:
    features, centres = noise(1, 1, 9, 9), torch.tensor([[[4.0, 4.0]]])
    angle = torch.tensor(math.pi / 2)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(1, 1, 2, 2)

    found = warp_patches(features, centres, turn, 2)

    # A step to the right in the patch is a step down in the map.
    torch.testing.assert_close(found[0, 0, 0, 2, 2:], features[0, 0, 4:7, 4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        found[0, 0, 0], features[0, 0, 2:7, 2:7].rot90(1), rtol=1e-4, atol=1e-5
    )


def test_patches_of_a_plane_lie_on_it_whatever_the_warp() -> None:
    y, x = torch.meshgrid(torch.arange(30.0), torch.arange(40.0), indexing="ij")
    plane = (2 * x - 3 * y)[None, None]
    centres, linear = torch.tensor([[[18.3, 14.6], [20.1, 15.2]]]), noise(1, 2, 2, 2)

    found = warp_patches(plane, centres, linear, 3)

    along = torch.einsum("i,bkij->bkj", torch.tensor([2.0, -3.0]), linear)
    steps = torch.arange(-3.0, 4)
    wanted = (
        (centres * torch.tensor([2.0, -3.0])).sum(-1)[..., None, None]
        + along[..., 1, None, None] * steps[:, None]
        + along[..., 0, None, None] * steps
    )
    torch.testing.assert_close(found[:, :, 0], wanted, rtol=1e-4, atol=1e-3)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features must be \(B C H W\)"):
        sample(noise(3, 4, 5), noise(1, 2, 2))
    with pytest.raises(ValueError, match=r"points must be \(B K 2\)"):
        sample(noise(1, 3, 4, 5), noise(2, 2, 2))
    with pytest.raises(ValueError, match=r"linear must be \(B K 2 2\)"):
        warp_patches(noise(1, 3, 4, 5), noise(1, 2, 2), noise(1, 3, 2, 2), 1)
