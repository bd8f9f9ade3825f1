"""What the step computes: the same on two devices as on one, and what one plain graph in float64 gives."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import softplus

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.reference import SplitDeviceGANTrainer, TrainerOptions

STEPS = 20
RATE, BETAS, EPSILON = 2e-4, (0.5, 0.999), 1e-8
LARGER_RATE = 5e-3
SIZES = [8, 8, 3] * 7

Weights = dict[str, Tensor]


def batches(tiny, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for size in SIZES[:STEPS]:
        text = torch.randn(size, tiny.TEXT, generator=generator, dtype=torch.float64)
        images = torch.rand(size, 1, tiny.SIDE, tiny.SIDE, generator=generator, dtype=torch.float64) * 2 - 1
        made.append((text.to(dtype), images.to(dtype)))
    return made


def bits(trainer: SplitDeviceGANTrainer) -> dict[str, list]:
    """Returns every weight, buffer, average, moment and gradient as plain numbers."""
    found: dict[str, list] = {}
    for name, module in (("G", trainer.generator), ("D", trainer.discriminator)):
        found |= {f"{name}.{key}": value.cpu().tolist() for key, value in module.state_dict().items()}
        found |= {
            f"{name}.{key}.grad": weight.grad.cpu().tolist() for key, weight in module.named_parameters()
        }
    if trainer.average is not None:
        found |= {
            f"E.{key}": value.cpu().tolist() for key, value in trainer.average.module.state_dict().items()
        }
    for name, optimizer in (("G", trainer.generator_optimizer), ("D", trainer.discriminator_optimizer)):
        for index, state in optimizer.state_dict()["state"].items():
            found |= {f"{name}.{index}.{key}": value.cpu().tolist() for key, value in state.items()}
    return found


def trained(tiny, places, options, dtype=torch.float32) -> tuple[dict[str, list], list[float]]:
    trainer = tiny.make_trainer(*places, options, dtype)
    losses = [trainer.step(*batch) for batch in batches(tiny, dtype)]
    return bits(trainer), [loss.item() for pair in losses for loss in pair]


@pytest.mark.parametrize("fakes", ["reuse", "fresh"])
@pytest.mark.parametrize("places", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda"), ("cuda:0", "cuda:1")])
def test_two_devices_compute_the_bits_of_one(tiny, places, fakes):
    options = TrainerOptions(
        fakes=fakes, max_gradient_norm=0.5, real_label=0.9, generator_learning_rate=LARGER_RATE
    )
    plain = trained(tiny, ("cpu", "cpu"), options)
    with Session(CaptureOptions(simulate=("cuda:1",))) as session:
        split = trained(tiny, places, options)
        session.close("finished", 0)
    assert split == plain
    assert len(plain[0]) > 60


def test_other_options_compute_other_bits(tiny):
    plain = trained(tiny, ("cpu", "cpu"), TrainerOptions())
    assert trained(tiny, ("cpu", "cpu"), TrainerOptions()) == plain
    assert trained(tiny, ("cpu", "cpu"), TrainerOptions(fakes="fresh")) != plain
    assert trained(tiny, ("cpu", "cpu"), TrainerOptions(real_label=0.9)) != plain


class PlainAdam:
    """Adam as in its paper, on a dict of weights."""

    def __init__(self, weights: Weights, rate: float) -> None:
        self.weights = weights
        self.rate = rate
        self.count = 0
        self.first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def step(self, gradients: dict[str, Tensor]) -> None:
        self.count += 1
        for name, gradient in gradients.items():
            self.first[name] = BETAS[0] * self.first[name] + (1 - BETAS[0]) * gradient
            self.second[name] = BETAS[1] * self.second[name] + (1 - BETAS[1]) * gradient**2
            first = self.first[name] / (1 - BETAS[0] ** self.count)
            second = self.second[name] / (1 - BETAS[1] ** self.count)
            change = self.rate * first / (second.sqrt() + EPSILON)
            self.weights[name] = (self.weights[name] - change).detach().requires_grad_()


def plain_training(tiny, *, fresh: bool) -> tuple[Weights, Weights, Weights, Weights]:
    """Returns the weights of both networks and their last gradients, of one graph a step and no detach.

    Each gradient is taken with respect to one network's weights alone, out of the graph of everything.
    """
    generator, discriminator = tiny.networks(torch.float64)
    generator.dropout.p = 0.0
    weights = [dict(module.named_parameters()) for module in (generator, discriminator)]
    buffers = {name: buffer.clone() for name, buffer in generator.named_buffers()}
    optimizers = [PlainAdam(weights[0], LARGER_RATE), PlainAdam(weights[1], RATE)]
    source = torch.Generator().manual_seed(11)

    def draw(text: Tensor) -> Tensor:
        noise = torch.randn(len(text), tiny.NOISE, generator=source, dtype=torch.float64)
        return functional_call(generator, ({**optimizers[0].weights, **buffers}), (noise, text))

    def judge(images: Tensor, text: Tensor) -> Tensor:
        return functional_call(discriminator, optimizers[1].weights, (images, text))

    gradients: list[Weights] = [{}, {}]
    for text, images in batches(tiny, torch.float64):
        fakes = draw(text)
        loss = softplus(-judge(images, text)).mean() + softplus(judge(fakes, text)).mean()
        gradients[1] = gradients_of(loss, optimizers[1].weights, retain_graph=True)
        optimizers[1].step(gradients[1])
        if fresh:
            fakes = draw(text)
        loss = softplus(-judge(fakes, text)).mean()
        gradients[0] = gradients_of(loss, optimizers[0].weights)
        optimizers[0].step(gradients[0])
    return optimizers[0].weights, optimizers[1].weights, gradients[0], gradients[1]


def gradients_of(loss: Tensor, weights: Weights, *, retain_graph: bool = False) -> Weights:
    found = torch.autograd.grad(loss, list(weights.values()), retain_graph=retain_graph)
    return dict(zip(weights, found, strict=True))


@pytest.mark.parametrize("fakes", ["reuse", "fresh"])
@pytest.mark.parametrize("places", [("cpu", "cpu"), ("cuda", "cpu")])
def test_float64_agrees_with_one_plain_graph(tiny, places, fakes):
    expected = plain_training(tiny, fresh=fakes == "fresh")
    with Session(CaptureOptions(simulate=("cuda",), level="watch")) as session:
        options = TrainerOptions(fakes=fakes, generator_learning_rate=LARGER_RATE)
        trainer = tiny.make_trainer(*places, options, torch.float64)
        trainer.generator.dropout.p = 0.0
        for batch in batches(tiny, torch.float64):
            trainer.step(*batch)
        networks = [
            {name: (weight.detach().cpu(), weight.grad.cpu()) for name, weight in module.named_parameters()}
            for module in (trainer.generator, trainer.discriminator)
        ]
        session.close("finished", 0)
    for index, network in enumerate(networks):
        for name, (weight, gradient) in network.items():
            assert weight.dtype == torch.float64
            assert (weight - expected[index][name]).abs().max() < 1e-10
            assert (gradient - expected[index + 2][name]).abs().max() < 1e-10
    start = tiny.networks(torch.float64)[0].out.weight
    assert (networks[0]["out.weight"][0] - start).abs().max() > 1e-3
