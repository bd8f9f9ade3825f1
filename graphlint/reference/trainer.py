"""The training of a text-to-image GAN whose generator and discriminator live on different devices.

This is the step that `graphlint` finds nothing to say about. May import `errors`, msgspec and torch.

What it keeps to:

- each tensor is sent once to each device that needs it, and nowhere else;
- the discriminator's loss ends at the fake images: it never runs back through the generator;
- the generator's loss runs back through the discriminator, whose parameters are frozen meanwhile;
- losses are computed where the discriminator lives, from its logits;
- sizes, labels and noise come from the batch at hand, so that a short last batch is a batch like any other;
- nothing in the step waits for a GPU, collects garbage or empties a cache.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from graphlint.errors import CheckpointError, UsageError
from graphlint.reference.devices import moved, usable_device
from graphlint.reference.ema import GeneratorAverage
from graphlint.reference.options import TrainerOptions


class StepLosses(NamedTuple):
    """The two losses of a step: 0-dimensional tensors on the discriminator's device, without graphs."""

    discriminator: Tensor
    generator: Tensor


class _Batch(NamedTuple):
    """A batch where it is needed; the two `text` tensors are one if both networks share a device."""

    text_for_generator: Tensor
    text_for_discriminator: Tensor
    images: Tensor


class SplitDeviceGANTrainer:
    """Trains a generator on one device against a discriminator on another, or on the same.

    The generator is called as `generator(noise, text_embeddings)`: noise `(N, noise_size)` and embeddings
    `(N, E)` on its device; it returns images `(N, ...)` of the shape of the real ones. The discriminator is
    called as `discriminator(images, text_embeddings)` with both on its device; it returns logits `(N,)` or
    `(N, 1)`: no sigmoid. Noise has the dtype of the embeddings, fake images that of the real ones, so modules
    and data in float64 are trained in float64.

    The modules are moved to their devices and put into training mode, as `Module.to` and `Module.train` do:
    in place.

    Args:
        generator: its parameters are updated by one Adam optimizer.
        discriminator: its parameters are updated by another; none may be the generator's.
        generator_device: where the generator, its optimizer and its average live.
        discriminator_device: where the discriminator, its optimizer, the real images and the losses live.
        noise_size: columns of the noise.
        options: how a step learns.
        seed: of the noise, which is drawn on the generator's device.

    Attributes:
        generator, discriminator: the modules given.
        generator_optimizer, discriminator_optimizer: their optimizers.
        average: the moving average of the generator; None with `ema_decay=None`.
        steps: training steps taken.

    Raises:
        UsageError: a device isn't there, the networks share a parameter, or one has nothing to train.
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        generator_device: str | torch.device,
        discriminator_device: str | torch.device,
        noise_size: int,
        options: TrainerOptions | None = None,
        seed: int = 0,
    ) -> None:
        _check_parameters(generator, discriminator)
        if noise_size < 1:
            raise UsageError(f"noise_size must be at least 1, not {noise_size}")
        self.options = options if options is not None else TrainerOptions()
        self.generator_device = usable_device(generator_device)
        self.discriminator_device = usable_device(discriminator_device)
        self.noise_size = noise_size
        self.generator = generator.to(self.generator_device).train()
        self.discriminator = discriminator.to(self.discriminator_device).train()
        self.generator_optimizer = torch.optim.Adam(
            generator.parameters(), lr=self.options.generator_learning_rate, betas=self.options.betas
        )
        self.discriminator_optimizer = torch.optim.Adam(
            discriminator.parameters(), lr=self.options.discriminator_learning_rate, betas=self.options.betas
        )
        decay = self.options.ema_decay
        self.average = GeneratorAverage(generator, decay) if decay is not None else None
        self.steps = 0
        self._noise = torch.Generator(device=self.generator_device)
        self._noise.manual_seed(seed)

    def step(self, text_embeddings: Tensor, images: Tensor) -> StepLosses:
        """Trains both networks on one batch and returns their losses; the host waits for no GPU.

        Args:
            text_embeddings: `(N, E)`, floating point, on any device.
            images: `(N, ...)`, floating point, on any device.

        Raises:
            UsageError: the batch is empty or its parts differ in length; a network returned a wrong shape.
        """
        batch = self._placed(text_embeddings, images)
        if self.options.fakes == "reuse":
            fakes = self._generate(batch)
            discriminator_loss = self._teach_discriminator(batch, fakes.detach())
        else:
            with torch.no_grad():
                unlearned = self._generate(batch)
            discriminator_loss = self._teach_discriminator(batch, unlearned)
            fakes = self._generate(batch)
        generator_loss = self._teach_generator(batch, fakes)
        if self.average is not None:
            self.average.update(self.generator)
        self.steps += 1
        return StepLosses(discriminator_loss.detach(), generator_loss.detach())

    @torch.no_grad()
    def sample(self, text_embeddings: Tensor, *, seed: int) -> Tensor:
        """Returns an image for each text, on the generator's device, from the average where one is kept.

        The seed decides the noise; the random state of the training is neither used nor changed.

        Args:
            text_embeddings: `(N, E)`, on any device.
        """
        source = torch.Generator(device=self.generator_device)
        source.manual_seed(seed)
        text = moved(text_embeddings, self.generator_device)
        noise = sample_noise(text, self.noise_size, source)
        if self.average is not None:
            return _call(self.average.module, noise, text)
        training = self.generator.training
        self.generator.eval()
        try:
            return _call(self.generator, noise, text)
        finally:
            self.generator.train(training)

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next step depends on, as plain values and tensors.

        The tensors are the live ones: copy them before the next step. What modules draw from torch's own
        random state, for dropout say, is not the trainer's: see `randomness`.
        """
        average = self.average
        return {
            "steps": self.steps,
            "options": msgspec.to_builtins(self.options),
            "noise_size": self.noise_size,
            "noise": self._noise.get_state(),
            "noise_device": self.generator_device.type,
            "generator": self.generator.state_dict(),
            "discriminator": self.discriminator.state_dict(),
            "generator_optimizer": self.generator_optimizer.state_dict(),
            "discriminator_optimizer": self.discriminator_optimizer.state_dict(),
            "average": None if average is None else average.module.state_dict(),
            "average_updates": 0 if average is None else average.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the trainer where the one was that gave the state: its next step is then the same to the bit.

        Nothing is shared with the state afterwards. The learning rates stay those of this trainer's options.

        Raises:
            CheckpointError: the state is of other modules, or of a trainer that drew other noise or kept an
                average where this one doesn't. What was loaded by then stays loaded.
        """
        if state["noise_device"] != self.generator_device.type or state["noise_size"] != self.noise_size:
            raise CheckpointError(
                f"the state is of a trainer that drew {state['noise_size']} random numbers an image on "
                f"{state['noise_device']}; this one draws {self.noise_size} on {self.generator_device.type}"
            )
        if (state["average"] is None) != (self.average is None):
            raise CheckpointError("the state and the trainer must both have a moving average, or neither")
        try:
            self.generator.load_state_dict(state["generator"])
            self.discriminator.load_state_dict(state["discriminator"])
            self.generator_optimizer.load_state_dict(copy.deepcopy(state["generator_optimizer"]))
            self.discriminator_optimizer.load_state_dict(copy.deepcopy(state["discriminator_optimizer"]))
            if self.average is not None:
                self.average.module.load_state_dict(state["average"])
                self.average.updates = state["average_updates"]
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the state is of other networks: {' '.join(str(error).split())}"
            ) from error
        _set_learning_rate(self.generator_optimizer, self.options.generator_learning_rate)
        _set_learning_rate(self.discriminator_optimizer, self.options.discriminator_learning_rate)
        self._noise.set_state(state["noise"])
        self.steps = state["steps"]

    def _placed(self, text_embeddings: Tensor, images: Tensor) -> _Batch:
        if len(text_embeddings) != len(images) or not len(images):
            raise UsageError(
                f"a batch needs as many text embeddings as images, at least one: not {len(text_embeddings)} "
                f"and {len(images)}"
            )
        text_for_generator = moved(text_embeddings, self.generator_device)
        if self.discriminator_device == self.generator_device:
            text_for_discriminator = text_for_generator
        else:
            text_for_discriminator = moved(text_embeddings, self.discriminator_device)
        return _Batch(text_for_generator, text_for_discriminator, moved(images, self.discriminator_device))

    def _generate(self, batch: _Batch) -> Tensor:
        """Returns a fake image for each text of the batch, on the discriminator's device."""
        noise = sample_noise(batch.text_for_generator, self.noise_size, self._noise)
        with self._precision(self.generator_device):
            made = _call(self.generator, noise, batch.text_for_generator)
        if made.shape != batch.images.shape:
            raise UsageError(
                f"the generator returned images of shape {tuple(made.shape)}; the real ones have "
                f"{tuple(batch.images.shape)}"
            )
        fakes = moved(made, self.discriminator_device)
        return fakes if fakes.dtype == batch.images.dtype else fakes.to(batch.images.dtype)

    def _teach_discriminator(self, batch: _Batch, fakes: Tensor) -> Tensor:
        """Updates the discriminator on the real images and on fakes that carry no graph; returns its loss."""
        with self._precision(self.discriminator_device):
            on_real = self._judge(batch.images, batch.text_for_discriminator)
            on_fake = self._judge(fakes, batch.text_for_discriminator)
            loss = _loss(on_real, self.options.real_label) + _loss(on_fake, 0.0)
        self._update(self.discriminator, self.discriminator_optimizer, loss)
        return loss

    def _teach_generator(self, batch: _Batch, fakes: Tensor) -> Tensor:
        """Updates the generator by what the discriminator now makes of its images; returns the loss."""
        with frozen(self.discriminator):
            with self._precision(self.discriminator_device):
                loss = _loss(self._judge(fakes, batch.text_for_discriminator), 1.0)
            self._update(self.generator, self.generator_optimizer, loss)
        return loss

    def _judge(self, images: Tensor, text: Tensor) -> Tensor:
        logits = _call(self.discriminator, images, text)
        if logits.shape not in {(len(images),), (len(images), 1)}:
            raise UsageError(
                f"the discriminator returned logits of shape {tuple(logits.shape)} for {len(images)} images; "
                f"({len(images)},) or ({len(images)}, 1) was expected"
            )
        return logits

    def _update(self, module: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.options.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), self.options.max_gradient_norm)
        optimizer.step()

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Returns the precision of one forward.

        Never of a whole step: autocast caches weights in low precision until it is left, and a step of the
        optimizer in between would leave the old ones in use.
        """
        if self.options.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)


def sample_noise(text_embeddings: Tensor, size: int, source: torch.Generator) -> Tensor:
    """Returns noise `(N, size)` for the `N` embeddings: of their dtype, and drawn on their device.

    Noise that is drawn on the host and then moved waits for the bus at every step.
    """
    device, dtype = text_embeddings.device, text_embeddings.dtype
    return torch.randn(len(text_embeddings), size, device=device, dtype=dtype, generator=source)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Keeps backward from computing gradients of the module's parameters; those frozen before stay so."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's signature
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)  # noqa: FBT003 - torch's signature


def _loss(logits: Tensor, label: float) -> Tensor:
    """Returns how far the logits are from one label, a 0-dimensional tensor where the logits are."""
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


def _call(module: nn.Module, first: Tensor, second: Tensor) -> Tensor:
    result: Tensor = module(first, second)
    return result


def _set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _check_parameters(generator: nn.Module, discriminator: nn.Module) -> None:
    for name, module in (("generator", generator), ("discriminator", discriminator)):
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise UsageError(f"the {name} has no parameter to train")
    owned = {id(parameter) for parameter in generator.parameters()}
    shared = [name for name, parameter in discriminator.named_parameters() if id(parameter) in owned]
    if shared:
        raise UsageError(f"the networks share parameters ({shared[0]}); each needs its own")
