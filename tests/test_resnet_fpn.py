"""The published backbone against kornia's, and folding against not folding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from matcher.nn.resnet_fpn import ResNetFPN, fold_batch_norms

SMALL = (8, 12, 16)


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    network = ResNetFPN(SMALL)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 2.0)
    return network.eval()


@pytest.mark.parametrize("size", [(64, 80), (65, 83), (70, 67), (17, 33), (1, 1)])
@torch.inference_mode()
def test_maps_equal_kornias_for_any_size(backbone, size):
    kornia = pytest.importorskip("kornia.feature.loftr.backbone.resnet_fpn")
    other = kornia.ResNetFPN_8_2({"initial_dim": SMALL[0], "block_dims": list(SMALL)}).eval()
    other.load_state_dict(backbone.state_dict())
    image = torch.rand(1, 1, *size)

    coarse, fine = backbone(image)

    expected = other(image)
    torch.testing.assert_close(coarse, expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(fine, expected[1], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_folding_does_not_change_the_maps(backbone):
    image = torch.rand(1, 1, 48, 56)
    before = backbone(image)

    fold_batch_norms(backbone)

    after = backbone(image)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())
    for folded, expected in zip(after, before, strict=True):
        torch.testing.assert_close(folded, expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_maps_have_the_strides_that_they_promise(backbone):
    coarse, fine = backbone(torch.rand(2, 1, 50, 77))

    assert coarse.shape == (2, SMALL[2], 7, 10)
    assert fine.shape == (2, SMALL[0], 25, 39)


def test_gradients_reach_every_parameter(backbone):
    coarse, fine = backbone.train()(torch.rand(2, 1, 32, 32))

    (coarse.square().mean() + fine.square().mean()).backward()

    assert all(parameter.grad is not None for parameter in backbone.parameters())
