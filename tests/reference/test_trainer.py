"""What the trainer refuses, what its options change, and what it keeps from a step."""

import gc
import weakref

import pytest
import torch
from torch import nn

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.errors import CheckpointError, UsageError
from graphlint.reference import RunOptions, SplitDeviceGANTrainer, TrainerOptions
from graphlint.reference.checkpoints import on_host
from graphlint.reference.devices import moved, pins_memory, usable_device
from graphlint.reference.trainer import frozen


def batch(tiny, size: int = 8):
    generator = torch.Generator().manual_seed(size)
    text = torch.randn(size, tiny.TEXT, generator=generator)
    return text, torch.rand(size, 1, tiny.SIDE, tiny.SIDE, generator=generator) * 2 - 1


def test_losses_are_plain_numbers_where_the_discriminator_is(tiny):
    with Session(CaptureOptions(simulate=("cuda",))) as session:
        losses = tiny.make_trainer("cpu", "cuda").step(*batch(tiny))
        session.close("finished", 0)
        assert [loss.device.type for loss in losses] == ["cuda", "cuda"]
    for loss in losses:
        assert loss.shape == ()
        assert not loss.requires_grad
        assert loss.item() > 0


def test_a_step_keeps_no_graph_and_no_batch(tiny):
    trainer = tiny.make_trainer()
    text, images = batch(tiny)
    losses = trainer.step(text, images)
    kept = [weakref.ref(text), weakref.ref(images)]
    del text, images
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
    assert all(loss.grad_fn is None for loss in losses)


def test_a_batch_of_one_is_a_batch(tiny):
    trainer = tiny.make_trainer()
    trainer.generator.normalize = nn.Identity()
    trainer.average = None
    assert trainer.step(*batch(tiny, 1)).generator > 0


@pytest.mark.parametrize("text_device", ["cpu", "cuda"])
def test_batches_may_come_from_any_device(tiny, text_device):
    with Session(CaptureOptions(simulate=("cuda",))) as session:
        trainer = tiny.make_trainer("cuda", "cpu")
        text, images = batch(tiny)
        trainer.step(text.to(text_device), images.to("cuda"))
        session.close("finished", 0)
    assert trainer.steps == 1


def norm_of_gradients(module: nn.Module) -> float:
    return torch.stack([parameter.grad.norm() for parameter in module.parameters()]).norm().item()


def test_gradients_are_clipped(tiny):
    free, clipped = tiny.make_trainer(), tiny.make_trainer(options=TrainerOptions(max_gradient_norm=1e-3))
    norms = []
    for trainer in (free, clipped):
        trainer.step(*batch(tiny))
        norms += [norm_of_gradients(trainer.generator), norm_of_gradients(trainer.discriminator)]
    assert min(norms[:2]) > 1e-2
    assert norms[2:] == pytest.approx([1e-3, 1e-3], rel=1e-3)


def test_the_average_follows_the_generator(tiny):
    trainer = tiny.make_trainer(options=TrainerOptions(ema_decay=0.5, generator_learning_rate=0.1))
    start = trainer.generator.out.weight.detach().clone()
    trainer.step(*batch(tiny))
    first = trainer.generator.out.weight.detach().clone()
    decay = 2 / 11
    assert torch.allclose(trainer.average.module.out.weight, decay * start + (1 - decay) * first)
    for _ in range(20):
        before = trainer.average.module.out.weight.clone()
        trainer.step(*batch(tiny))
    after = 0.5 * before + 0.5 * trainer.generator.out.weight.detach()
    assert torch.allclose(trainer.average.module.out.weight, after)
    assert torch.equal(
        trainer.average.module.normalize.running_mean, trainer.generator.normalize.running_mean
    )
    assert not trainer.average.module.training
    assert not any(weight.requires_grad for weight in trainer.average.module.parameters())


def test_mixed_precision_moves_half_the_bytes_and_trains_in_float32(tiny):
    trainer = tiny.make_trainer(options=TrainerOptions(autocast="bfloat16"))
    seen = []
    trainer.generator.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    losses = trainer.step(*batch(tiny))
    assert seen == [torch.bfloat16]
    assert [loss.dtype for loss in losses] == [torch.float32] * 2
    assert {weight.grad.dtype for weight in trainer.generator.parameters()} == {torch.float32}


@pytest.mark.parametrize("decay", [0.9, None])
def test_samples_come_from_the_seed_alone(tiny, decay):
    trainer = tiny.make_trainer(options=TrainerOptions(ema_decay=decay))
    trainer.step(*batch(tiny))
    text, _ = batch(tiny, 3)
    before = torch.get_rng_state()
    images = trainer.sample(text, seed=4)
    assert images.shape == (3, 1, tiny.SIDE, tiny.SIDE)
    assert not images.requires_grad
    assert torch.equal(trainer.sample(text, seed=4), images)
    assert not torch.equal(trainer.sample(text, seed=5), images)
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.generator.training


def test_frozen_parameters_come_back_as_they_were(tiny):
    _, discriminator = tiny.networks()
    discriminator.text.weight.requires_grad = False
    before = [parameter.requires_grad for parameter in discriminator.parameters()]

    def fail() -> None:
        with frozen(discriminator):
            assert not any(parameter.requires_grad for parameter in discriminator.parameters())
            raise RuntimeError("within")

    with pytest.raises(RuntimeError, match="within"):
        fail()
    assert [parameter.requires_grad for parameter in discriminator.parameters()] == before
    assert before.count(False) == 1


def test_a_frozen_part_is_neither_trained_nor_woken(tiny):
    trainer = tiny.make_trainer()
    trainer.discriminator.text.weight.requires_grad = False
    before = trainer.discriminator.text.weight.clone()
    trainer.step(*batch(tiny))
    assert torch.equal(trainer.discriminator.text.weight, before)
    assert not trainer.discriminator.text.weight.requires_grad


def test_the_state_is_all_that_the_next_step_depends_on(tiny):
    one, other = tiny.make_trainer(), tiny.make_trainer()
    for trainer in (one, other):
        trainer.generator.dropout.p = 0.0
    for size in (8, 3):
        one.step(*batch(tiny, size))
    other.load_state_dict(on_host(one.state_dict()))
    assert other.steps == 2
    for trainer in (one, other):
        trainer.step(*batch(tiny, 7))
    for name in ("generator", "discriminator"):
        pairs = [getattr(trainer, name).state_dict() for trainer in (one, other)]
        assert all(torch.equal(value, pairs[1][key]) for key, value in pairs[0].items())


def test_a_loaded_state_is_not_shared(tiny):
    one, other = tiny.make_trainer(), tiny.make_trainer()
    one.step(*batch(tiny))
    other.load_state_dict(one.state_dict())
    moment = one.generator_optimizer.state[one.generator.out.weight]["exp_avg"].clone()
    other.step(*batch(tiny))
    assert torch.equal(one.generator_optimizer.state[one.generator.out.weight]["exp_avg"], moment)


def test_states_of_other_trainers_are_refused(tiny):
    state = tiny.make_trainer().state_dict()
    without = tiny.make_trainer(options=TrainerOptions(ema_decay=None))
    with pytest.raises(CheckpointError, match="both have a moving average, or neither"):
        without.load_state_dict(state)
    with Session(CaptureOptions(simulate=("cuda",))) as session:
        with pytest.raises(
            CheckpointError, match="drew 5 random numbers an image on cpu; this one draws 5 on cuda"
        ):
            tiny.make_trainer("cuda").load_state_dict(state)
        session.close("finished", 0)


def make(generator, discriminator, **changes):
    values = {"generator_device": "cpu", "discriminator_device": "cpu", "noise_size": 5, **changes}
    return SplitDeviceGANTrainer(generator, discriminator, **values)


def test_networks_and_devices_that_cannot_be_trained(tiny):
    generator, discriminator = tiny.networks()

    def refused(pattern: str, first=generator, second=discriminator, **changes) -> None:
        with pytest.raises(UsageError, match=pattern):
            make(first, second, **changes)

    refused("the generator has no parameter to train", nn.Identity())
    refused("the discriminator has no parameter to train", generator, nn.Identity())
    refused(r"the networks share parameters \(text\.weight\)", generator, generator)
    refused("noise_size must be at least 1, not 0", noise_size=0)
    refused("no device cuda:3 on this machine; there is cpu", generator_device="cuda:3")
    refused("no device tpu on this machine", discriminator_device="tpu")
    refused("the meta device holds no values", discriminator_device="meta")


def test_batches_and_shapes_that_are_wrong(tiny):
    trainer = tiny.make_trainer()
    text, images = batch(tiny)

    def refused(pattern: str, text=text, images=images) -> None:
        with pytest.raises(UsageError, match=pattern):
            trainer.step(text, images)
        assert trainer.steps == 0

    refused("as many text embeddings as images, at least one: not 8 and 7", images=images[:7])
    refused("at least one: not 0 and 0", text[:0], images[:0])
    refused(
        r"images of shape \(8, 1, 4, 4\); the real ones have \(8, 3, 4, 4\)", images=torch.ones(8, 3, 4, 4)
    )
    trainer.discriminator.out = nn.Linear(12, 2)
    refused(r"logits of shape \(8, 2\) for 8 images; \(8,\) or \(8, 1\) was expected")


def test_logits_of_one_dimension_are_as_good(tiny):
    trainer, other = tiny.make_trainer(), tiny.make_trainer()
    trainer.generator.dropout.p = other.generator.dropout.p = 0.0
    forward = other.discriminator.forward
    other.discriminator.forward = lambda images, text: forward(images, text).squeeze(1)
    assert trainer.step(*batch(tiny)) == other.step(*batch(tiny))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fakes": "both"}, "fakes must be one of 'reuse', 'fresh', not 'both'"),
        ({"autocast": "float16"}, "autocast must be one of 'bfloat16', None, not 'float16'"),
        ({"generator_learning_rate": 0.0}, "generator_learning_rate must be a positive number, not 0.0"),
        ({"discriminator_learning_rate": float("nan")}, "must be a positive number, not nan"),
        ({"generator_learning_rate": float("inf")}, "must be a positive number, not inf"),
        ({"real_label": 1.5}, "real_label must be between 0 and 1, not 1.5"),
        ({"max_gradient_norm": -1.0}, "max_gradient_norm must be a positive number, not -1.0"),
        ({"ema_decay": 1.0}, "ema_decay must be between 0 and 1, not 1.0"),
        ({"betas": (0.5, 1.0)}, "betas must lie between 0 and 1"),
    ],
)
def test_options_out_of_range(changes, words):
    with pytest.raises(UsageError) as caught:
        TrainerOptions(**changes)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["steps", "batch_size", "log_every", "checkpoint_every", "sample_every"])
def test_run_options_out_of_range(name):
    with pytest.raises(UsageError, match=f"^{name} must be at least 1, not 0$"):
        RunOptions(**{"steps": 1, name: 0})
    for other in ("workers", "seed"):
        with pytest.raises(UsageError, match="can't be negative"):
            RunOptions(steps=1, **{other: -1})


def test_a_tensor_that_is_there_is_not_asked_to_move():
    tensor = torch.ones(2)
    assert moved(tensor, torch.device("cpu")) is tensor
    assert usable_device("cpu") == torch.device("cpu")
    assert not pins_memory(torch.device("cpu"))


class _Spy(torch.Tensor):
    """Notes how it was asked to move."""

    asked = ()

    def to(self, *arguments, **keywords):
        type(self).asked = (*arguments, *keywords.items())
        return self


@pytest.mark.parametrize(("start", "end", "waits"), [("cpu", "cuda:0", False), ("meta", "cpu", True)])
def test_only_copies_to_a_gpu_are_queued(start, end, waits):
    moved(torch.empty(2, device=start).as_subclass(_Spy), torch.device(end))
    assert _Spy.asked == (torch.device(end), ("non_blocking", not waits))


def test_pinned_memory_where_there_is_a_gpu():
    with Session(CaptureOptions(simulate=("cuda",))) as session:
        assert usable_device("cuda") == torch.device("cuda:0")
        assert pins_memory(torch.device("cuda:0"), torch.device("cpu"))
        assert not pins_memory(torch.device("cpu"))
        session.close("finished", 0)
