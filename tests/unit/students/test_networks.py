"""Networks take records as the data sets give them."""

from __future__ import annotations

import pytest
import torch

from pate.students.networks import Mlp, SmallCNN, channels_first


@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (9, 33), (32, 32, 3), (8, 8, 5)])
def test_small_cnn_takes_images_of_any_size(shape):
    assert SmallCNN(classes=7, channels=[4, 8, 8])(torch.rand(3, *shape)).shape == (3, 7)


def test_channels_come_from_the_end():
    images = torch.rand(2, 8, 9, 3)
    torch.testing.assert_close(channels_first(images)[1, 2, 4, 5], images[1, 4, 5, 2])


@pytest.mark.parametrize("shape", [(7, 28), (28,), (2, 8, 8, 3)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match="at least 8 pixels"):
        SmallCNN(classes=2)(torch.rand(3, *shape))


def test_the_default_width():
    net = SmallCNN(classes=10)
    net(torch.rand(2, 28, 28))
    assert [m.out_channels for m in net.modules() if hasattr(m, "out_channels")] == [16, 32, 64]
    assert sum(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules()) == 3


@pytest.mark.parametrize("shape", [(30,), (4, 5)])
def test_mlp(shape):
    assert Mlp(classes=3, hidden=[8, 4])(torch.rand(6, *shape)).shape == (6, 3)
