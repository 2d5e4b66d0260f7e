"""The GAN: which loss moves whom, features of any network, a generator that stays in range."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pate.errors import InvalidInput
from pate.students.networks import Mlp, SmallCNN
from pate.students.semi_supervised import InputGenerator, frozen, real_or_fake_loss
from pate.students.semi_supervised import feature_function as features_of
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student


def test_realness_is_a_class_more_with_logit_zero():
    generator = torch.Generator().manual_seed(0)
    real, fake = (torch.randn(9, 4, generator=generator) for _ in range(2))

    def loss(logits, target):
        wide = torch.cat([logits, torch.zeros(9, 1)], dim=1).softmax(dim=1)
        share = wide[:, 4] if target == "fake" else 1 - wide[:, 4]
        return -share.log().mean()

    expected = 0.5 * (loss(real, "real") + loss(fake, "fake"))
    torch.testing.assert_close(real_or_fake_loss(real, fake), expected)


def test_features_are_what_the_last_layer_sees():
    images, records = torch.rand(4, 8, 8), torch.rand(4, 6)
    cnn = SmallCNN(3).eval()
    cnn(images)
    torch.testing.assert_close(cnn.head(features_of(cnn, classes=3, name="x")(images)), cnn(images))
    mlp = Mlp(3, hidden=[5]).eval()
    mlp(records)
    found = features_of(mlp, classes=3, name="x")(records)
    assert found.shape == (4, 5)
    torch.testing.assert_close(mlp.layers[-1](found), mlp(records))
    assert not mlp.layers[-1]._forward_pre_hooks


def test_a_network_without_features_is_refused():
    data = StudentData(inputs=np.eye(4, 3), rows=[0, 1], labels=[0, 1], classes=2)
    params = {"in_features": 3, "out_features": 2}
    with pytest.raises(InvalidInput, match=r"torch.nn:Linear has no method features\(x\)"):
        train_student(StudentSpec(model="torch.nn:Linear", params=params, method="gan"), data)
    with pytest.raises(InvalidInput, match="ends in no linear layer"):
        features_of(nn.Sequential(nn.Linear(3, 4), nn.Conv1d(1, 1, 1)), classes=2, name="own:net")


def test_modules_at_rest_pass_gradients_on_and_keep_none():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    net[1].bias.requires_grad_(False)
    noise = torch.ones(2, 3, requires_grad=True)
    with frozen(net):
        loss = net(noise).sum()
    loss.backward()
    assert noise.grad is not None
    assert float(noise.grad.abs().sum()) > 0
    assert all(parameter.grad is None for parameter in net.parameters())
    assert int(net[0].num_batches_tracked) == 0
    assert net[0].training
    assert net[1].weight.requires_grad
    assert not net[1].bias.requires_grad


@pytest.mark.parametrize("shape", [(5,), (8, 8), (8, 9, 3)])
def test_made_inputs_stay_in_range(shape):
    inputs = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    inputs[:, 0] = 7.0
    maker = InputGenerator(inputs, latent=6, hidden=(10,))
    made = maker.draw(300, torch.Generator().manual_seed(1))
    assert made.shape == (300, *shape)
    assert bool((made >= inputs.amin(dim=0)).all() and (made <= inputs.amax(dim=0)).all())
    assert bool((made[:, 0] == 7.0).all())
    again = maker.draw(300, torch.Generator().manual_seed(1))
    torch.testing.assert_close(made, again)


def weights(**settings):
    truth = np.arange(60) % 3
    inputs = np.eye(3, 5)[truth] * 3 + np.random.default_rng(1).normal(size=(60, 5))
    data = StudentData(inputs=inputs, rows=[0, 1, 2, 3], labels=[0, 1, 2, 0], classes=3)
    spec = StudentSpec(
        model="mlp",
        params={"hidden": [8]},
        method="gan",
        epochs=3,
        batch_size=20,
        gan={"latent": 4, "hidden": [8]} | settings,
    )
    student = train_student(spec, data)
    return torch.cat([v.double().flatten() for v in student.module.state_dict().values()])


def test_every_setting_matters():
    basis = weights()
    assert torch.equal(basis, weights())
    for changes in ({"weight": 0.5}, {"labelled": 2}, {"latent": 5}, {"hidden": [9]}):
        assert not torch.equal(weights(**changes), basis), changes


@pytest.mark.campaign
def test_the_generator_learns_to_look_like_the_inputs():
    """Its loss moves it: what it makes comes nearer to the mean of real inputs."""
    from pate.students import semi_supervised as module

    kept = []

    class Kept(InputGenerator):  # type: ignore[misc]
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            kept.append(self)

    inputs = torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) ** 4
    data = StudentData(inputs=inputs.numpy(), rows=[0, 1], labels=[0, 1], classes=2)
    spec = StudentSpec(model="mlp", params={"hidden": [16]}, method="gan", epochs=30, batch_size=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "InputGenerator", Kept)
        train_student(spec, data)
    before = InputGenerator(inputs, latent=100, hidden=(500, 500))

    def apart(maker):
        made = maker.draw(500, torch.Generator().manual_seed(3)).mean(dim=0)
        return float((made - inputs.mean(dim=0)).abs().mean())

    with torch.no_grad():
        assert apart(kept[0].train()) < 0.5 * apart(before)
