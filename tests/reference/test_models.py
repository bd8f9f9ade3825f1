"""The networks for digits: shapes, ranges, and that nothing of a batch leaks into another row of it."""

import pytest
import torch
from torch import nn

from graphlint.reference.models import DigitDiscriminator, DigitGenerator

NOISE, TEXT = 7, 9


@pytest.fixture
def networks() -> tuple[DigitGenerator, DigitDiscriminator]:
    torch.manual_seed(0)
    return DigitGenerator(NOISE, TEXT, width=24), DigitDiscriminator(TEXT, width=16)


@pytest.mark.parametrize("batch", [1, 5])
def test_shapes_and_range(networks, batch):
    generator, discriminator = networks
    images = generator(torch.randn(batch, NOISE) * 10, torch.randn(batch, TEXT))
    assert images.shape == (batch, 1, 8, 8)
    assert images.abs().max() <= 1
    assert discriminator(images, torch.randn(batch, TEXT)).shape == (batch,)


@pytest.mark.parametrize("training", [True, False])
def test_a_row_does_not_depend_on_those_beside_it(networks, training):
    generator, discriminator = networks
    generator.train(training)
    discriminator.eval()  # in training mode each call makes the spectral norms a little more exact
    noise, text = torch.randn(5, NOISE), torch.randn(5, TEXT)
    images = generator(noise, text)
    torch.testing.assert_close(generator(noise[2:3], text[2:3]), images[2:3])
    torch.testing.assert_close(discriminator(images[2:3], text[2:3]), discriminator(images, text)[2:3])


def test_text_and_noise_both_matter(networks):
    generator, discriminator = networks
    discriminator.eval()
    noise, text = torch.randn(2, NOISE), torch.randn(2, TEXT)
    images = generator(noise, text)
    assert not torch.allclose(generator(noise.flip(0), text), images)
    assert not torch.allclose(generator(noise, text.flip(0)), images)
    assert not torch.allclose(discriminator(images, text.flip(0)), discriminator(images, text))


def test_every_parameter_gets_a_gradient(networks):
    generator, discriminator = networks
    text = torch.randn(6, TEXT)
    discriminator(generator(torch.randn(6, NOISE), text), text).sum().backward()
    names = [
        name
        for network in networks
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert names == []


def test_the_discriminator_is_never_steep(networks):
    _, discriminator = networks
    with torch.no_grad():
        for parameter in discriminator.parameters():
            parameter.mul_(50)
        for _ in range(50):
            discriminator(torch.randn(3, 1, 8, 8), torch.randn(3, TEXT))
    layers = [module for module in discriminator.modules() if isinstance(module, nn.Linear)]
    norms = [torch.linalg.matrix_norm(layer.weight, ord=2).item() for layer in layers]
    assert len(norms) == 4
    assert norms == pytest.approx([1.0] * 4, abs=0.05)


def test_float64_is_kept(networks):
    generator, discriminator = (network.double() for network in networks)
    text = torch.randn(2, TEXT, dtype=torch.float64)
    logits = discriminator(generator(torch.randn(2, NOISE, dtype=torch.float64), text), text)
    assert logits.dtype == torch.float64
