"""What the reference trainer and a run of it can be told; imports `errors` and msgspec, no torch.

Both are plain values: a checkpoint stores them, and a resumed run compares them with its own.
"""

import math
from typing import Literal

import msgspec

from graphlint.errors import UsageError

Fakes = Literal["reuse", "fresh"]

MAX_SEED = 2**63 - 1
"""The largest seed that torch takes."""

_BELOW_ONE = math.nextafter(1.0, 0.0)


class TrainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a step of the trainer learns.

    Attributes:
        fakes: "reuse" generates once a step, and keeps the generator's graph while the discriminator learns;
            "fresh" generates a batch for each network: twice the forwards, and less memory at the peak.
        generator_learning_rate, discriminator_learning_rate: of the two Adam optimizers.
        betas: of both optimizers.
        real_label: the discriminator's target for real images; below 1.0 it is smoothed on that side only.
        max_gradient_norm: gradients of each network are scaled down to this norm; None: left as they are.
        ema_decay: of the moving average of the generator's weights, which samples are drawn from; None: no
            average is kept, and the generator itself is sampled.
        autocast: "bfloat16" runs both networks' forwards in mixed precision. float16 is not offered: it needs
            loss scaling, and bfloat16 has the range of float32.

    Raises:
        UsageError: a value is out of range.
    """

    fakes: Fakes = "reuse"
    generator_learning_rate: float = 2e-4
    discriminator_learning_rate: float = 2e-4
    betas: tuple[float, float] = (0.5, 0.999)
    real_label: float = 1.0
    max_gradient_norm: float | None = None
    ema_decay: float | None = 0.999
    autocast: Literal["bfloat16"] | None = None

    def __post_init__(self) -> None:
        _one_of("fakes", self.fakes, ("reuse", "fresh"))
        _one_of("autocast", self.autocast, ("bfloat16", None))
        _above_zero("generator_learning_rate", self.generator_learning_rate)
        _above_zero("discriminator_learning_rate", self.discriminator_learning_rate)
        _above_zero("real_label", self.real_label, most=1.0)
        if self.max_gradient_norm is not None:
            _above_zero("max_gradient_norm", self.max_gradient_norm)
        if self.ema_decay is not None:
            _above_zero("ema_decay", self.ema_decay, most=_BELOW_ONE)
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise UsageError(f"betas must lie between 0 and 1, not {self.betas}")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run trains, on which batches, and how often it reports.

    Attributes:
        steps: training steps in all, those of an interrupted run that is resumed included.
        batch_size: items of a full batch; the last of an epoch may be shorter.
        seed: of the order of the items; together with the epoch it decides it.
        log_every: steps between two readings of the losses. A reading waits for the devices, writes the
            metrics, and copies the state to the host's memory, to be saved should the losses turn NaN.
        checkpoint_every: steps between two checkpoints.
        sample_every: steps between two grids of samples.
        sample_columns: images of each text in a grid.
        workers: processes that load items; 0 loads them in this one.

    Raises:
        UsageError: a value is out of range.
    """

    steps: int
    batch_size: int = 64
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    sample_every: int = 500
    sample_columns: int = 8
    workers: int = 0

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "log_every",
            "checkpoint_every",
            "sample_every",
            "sample_columns",
        ):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if self.workers < 0 or self.seed < 0:
            raise UsageError("workers and seed can't be negative")
        if self.seed > MAX_SEED:
            raise UsageError(f"seed can't be more than {MAX_SEED}")


def _one_of(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _above_zero(name: str, value: float, most: float = math.inf) -> None:
    if not 0.0 < value <= most or math.isinf(value):
        bound = f"between 0 and {most:.3g}" if most < math.inf else "a positive number"
        raise UsageError(f"{name} must be {bound}, not {value}")
