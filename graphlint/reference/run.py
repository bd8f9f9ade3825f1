"""A run of the trainer: its batches, and the files that let it be watched, stopped and taken up again.

    checkpoint.pt           all that the next step depends on, with the batch that comes next
    metrics.jsonl           the losses of each step
    samples/step-N.png      a grid of images from the average of the generator

May import `errors`, msgspec and torch; what draws is imported when there is something to draw.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from graphlint.errors import CheckpointError, NonFiniteLossError, UsageError
from graphlint.reference import checkpoints, metrics
from graphlint.reference.checkpoints import non_finite, on_host, read_checkpoint, write_checkpoint
from graphlint.reference.devices import pins_memory
from graphlint.reference.interruption import Interruption, TrainingInterrupted
from graphlint.reference.metrics import MetricsFile, StepMetrics
from graphlint.reference.options import RunOptions, TrainerOptions
from graphlint.reference.order import EpochBatches, epoch_seed
from graphlint.reference.progress import TrainingProgress
from graphlint.reference.randomness import random_state, restore_random_state
from graphlint.reference.trainer import SplitDeviceGANTrainer, StepLosses

SAMPLES = "samples"

_SAME_STEPS = ("fakes", "betas", "real_label", "ema_decay", "autocast")
_SAME_BATCHES = ("batch_size", "seed")
_TRAINED = ("generator", "discriminator")
_OPTIMIZERS = ("generator_optimizer", "discriminator_optimizer")


class SampleTexts(NamedTuple):
    """What the grids of a run show: a caption for each row, and its embedding, `(rows, E)`."""

    captions: tuple[str, ...]
    embeddings: Tensor


class TrainingRun:
    """Trains for a number of steps, and leaves behind what is needed to go on from the last checkpoint.

    A run that was interrupted or killed, and resumed, ends with the weights of one that wasn't, bit for bit:
    on devices that compute the same each time, and with a data set whose items depend on their index, on
    `set_epoch` and, with `workers=0`, on the random generators of Python, NumPy and torch.

    Args:
        trainer: takes the steps.
        dataset: has a length, and items `(text_embedding, image)`; its `set_epoch(epoch)`, if it has one, is
            called before each epoch.
        out: a directory, made if it is missing, for the files of the run.
        options: how long, on which batches, and how often it reports.
        texts: what to draw samples of; None: no grids are drawn.
        recipe: plain values and tensors that are kept in the checkpoint for whoever samples from it.
        stream: where progress is shown; None: nowhere.

    Raises:
        UsageError: the data set is empty or has no length.
    """

    def __init__(
        self,
        trainer: SplitDeviceGANTrainer,
        dataset: Dataset[Any],
        out: Path,
        options: RunOptions,
        *,
        texts: SampleTexts | None = None,
        recipe: Mapping[str, Any] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.trainer = trainer
        self.dataset = dataset
        self.options = options
        self.checkpoint = out / checkpoints.FILE
        self._out = out
        self._items = _length(dataset)
        self._texts = texts
        self._recipe = dict(recipe or {})
        self._stream = stream
        self._metrics = MetricsFile(out / metrics.FILE)
        self._devices = (trainer.generator_device, trainer.discriminator_device)
        self._epoch = 0
        self._batch = 0
        self._unread: list[tuple[int, StepLosses]] = []
        self._good: dict[str, Any] = {}
        self._saved = 0

    def train(self, *, resume: bool = False) -> Path:
        """Trains up to the number of steps, and returns the file of the last checkpoint.

        Ctrl-C ends the step at hand, saves, and ends the run; a second one ends it at once. Of a run that
        has all its steps already, nothing is done.

        Args:
            resume: to go on from the checkpoint in the directory.

        Raises:
            UsageError: there is a checkpoint and nothing was said of it, or the reverse; a file can't be
                written; an item is no pair; a network returns a wrong shape.
            CheckpointError: the checkpoint is damaged, or of another run.
            NonFiniteLossError: a loss or a weight became NaN or infinite; the last good state was saved.
            TrainingInterrupted: Ctrl-C; the state was saved.
        """
        self._open(resume=resume)
        progress = TrainingProgress(self._stream, steps=self.options.steps)
        with Interruption() as interruption, progress:
            while self.trainer.steps < self.options.steps and not interruption.asked:
                self._train_epoch(interruption, progress)
        if self.trainer.steps < self.options.steps:
            if self._unread:
                self._read_losses()
            self._save()
            raise TrainingInterrupted(
                f"interrupted after step {self.trainer.steps} of {self.options.steps}; saved in "
                f"{self.checkpoint}, resume to go on from there"
            )
        return self.checkpoint

    def _train_epoch(self, interruption: Interruption, progress: TrainingProgress) -> None:
        """Trains on the batches that are left of the epoch, or until the run is to end."""
        for batch in self._loader():
            text_embeddings, images = _pair(batch)
            losses = self.trainer.step(text_embeddings, images)
            self._batch += 1
            self._unread.append((self._epoch, losses))
            self._report(progress)
            if interruption.asked or self.trainer.steps >= self.options.steps:
                return
        self._epoch += 1
        self._batch = 0

    def _loader(self) -> "DataLoader[Any]":
        """Returns the batches that are left of the epoch; drawing them uses no random state of torch's."""
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._epoch)
        seed = self.options.seed
        return DataLoader(
            self.dataset,
            batch_sampler=EpochBatches(
                self._items, self.options.batch_size, seed=seed, epoch=self._epoch, first=self._batch
            ),
            num_workers=self.options.workers,
            pin_memory=pins_memory(*self._devices),
            generator=torch.Generator().manual_seed(epoch_seed(seed, self._epoch)),
        )

    def _report(self, progress: TrainingProgress) -> None:
        """Does what is due after a step; in most steps nothing, and no device is waited for."""
        step, options = self.trainer.steps, self.options
        progress.advance(step)
        last = step >= options.steps
        saves = last or step % options.checkpoint_every == 0
        draws = self._texts is not None and (last or step % options.sample_every == 0)
        if not saves and not draws and step % options.log_every:
            return
        rows = self._read_losses()
        progress.show(step, rows[-1].discriminator_loss, rows[-1].generator_loss)
        if saves:
            self._save()
            progress.report(step, rows[-1].discriminator_loss, rows[-1].generator_loss)
        if draws and self._texts is not None:
            self._draw_samples(self._texts)

    def _read_losses(self) -> tuple[StepMetrics, ...]:
        """Returns the losses since the last reading, in one wait for the device, and keeps the state.

        Raises:
            NonFiniteLossError: one of them is NaN or infinite, or a weight is.
        """
        values = torch.stack([loss for _, losses in self._unread for loss in losses]).tolist()
        first = self.trainer.steps - len(self._unread) + 1
        rows = tuple(
            StepMetrics(step=first + index, epoch=epoch, discriminator_loss=on_both, generator_loss=on_fakes)
            for index, ((epoch, _), on_both, on_fakes) in enumerate(
                zip(self._unread, values[::2], values[1::2], strict=True)
            )
        )
        self._unread.clear()
        self._metrics.append(rows)
        state = self._state()
        problem = next(filter(None, map(StepMetrics.problem, rows)), None)
        if problem is None and (name := self._bad_weight(state["trainer"])) is not None:
            problem = f"{name} holds NaN or infinite values after step {self.trainer.steps}"
        if problem is not None:
            self._give_up(problem)
        self._good = state
        return rows

    def _give_up(self, problem: str) -> None:
        self._save()
        raise NonFiniteLossError(
            f"{problem}; the last good state, after step {self._good['trainer']['steps']}, is in "
            f"{self.checkpoint}: resume from there with lower learning rates, or with clipped gradients"
        )

    def _bad_weight(self, trainer: Mapping[str, Any]) -> str | None:
        """Returns the name of a parameter, or of what an optimizer keeps, that is no longer finite.

        Buffers are left out: a mask may hold infinities by right.
        """
        weights = {name: _parameters(getattr(self.trainer, name), trainer[name]) for name in _TRAINED}
        return non_finite({**weights, **{name: trainer[name]["state"] for name in _OPTIMIZERS}})

    def _draw_samples(self, texts: SampleTexts) -> None:
        from graphlint.reference.grids import draw_grid, save_png

        columns = self.options.sample_columns
        repeated = texts.embeddings.repeat_interleave(columns, dim=0)
        images = self.trainer.sample(repeated, seed=self.options.seed)
        grid = draw_grid(images.reshape(-1, columns, *images.shape[1:]), texts.captions)
        save_png(grid, self._out / SAMPLES / f"step-{self.trainer.steps:06d}.png")

    def _state(self) -> dict[str, Any]:
        """Returns a copy of all that the rest of the run depends on."""
        state = {
            "trainer": self.trainer.state_dict(),
            "random": random_state(self._devices),
            "run": msgspec.to_builtins(self.options),
            "epoch": self._epoch,
            "batch": self._batch,
            "items": self._items,
        }
        return {**on_host(state), "recipe": self._recipe}

    def _open(self, *, resume: bool) -> None:
        try:
            (self._out / SAMPLES if self._texts is not None else self._out).mkdir(parents=True, exist_ok=True)
            found = self.checkpoint.exists()
            foreign = not found and self._metrics.path.exists()
        except OSError as error:
            raise UsageError(f"can't write to {self._out}: {error.strerror or error}") from error
        if resume and not found:
            raise UsageError(f"there is nothing to resume in {self._out}: it holds no {checkpoints.FILE}")
        if found and not resume:
            raise UsageError(f"{self._out} holds a run already: resume it, or train in another directory")
        if foreign:
            raise UsageError(
                f"{self._out} holds a {metrics.FILE} already, of no run: train in another directory"
            )
        if resume:
            self._restore(read_checkpoint(self.checkpoint))
        self._good = self._state()
        if (name := self._bad_weight(self._good["trainer"])) is not None:
            raise NonFiniteLossError(f"{name} holds NaN or infinite values before the first step")
        self._metrics.keep_until(self.trainer.steps)
        self._saved = self.trainer.steps
        if not resume:
            self._save()

    @property
    def saved_steps(self) -> int:
        """Training steps that the last checkpoint written or read holds; 0 before `train`."""
        return self._saved

    def _save(self) -> None:
        write_checkpoint(self._good, self.checkpoint)
        self._saved = int(self._good["trainer"]["steps"])

    def _restore(self, state: Mapping[str, Any]) -> None:
        try:
            run, steps = stored_options(state, self.checkpoint)
            position = int(state["epoch"]), int(state["batch"])
            self._refuse_other_run(run, steps, int(state["items"]))
            self.trainer.load_state_dict(state["trainer"])
            restore_random_state(state["random"], self._devices)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.checkpoint}: damaged, {error!r}") from error
        self._epoch, self._batch = position
        self._recipe = dict(state["recipe"])

    def _refuse_other_run(self, run: RunOptions, steps: TrainerOptions, items: int) -> None:
        """Raises a `CheckpointError` where going on would not be going on with the same run."""
        pairs = [
            ("items of the data set", items, self._items),
            *((name, getattr(run, name), getattr(self.options, name)) for name in _SAME_BATCHES),
            *((name, getattr(steps, name), getattr(self.trainer.options, name)) for name in _SAME_STEPS),
        ]
        changed = [f"{name} was {then}, is now {now}" for name, then, now in pairs if then != now]
        if changed:
            raise CheckpointError(f"{self.checkpoint} is of another run: {'; '.join(changed)}")


def stored_options(state: Mapping[str, Any], path: Path) -> tuple[RunOptions, TrainerOptions]:
    """Returns the options of the run that wrote a checkpoint.

    Raises:
        CheckpointError: they are missing, or of another version; the text holds the path.
    """
    try:
        run = msgspec.convert(state["run"], RunOptions)
        return run, msgspec.convert(state["trainer"]["options"], TrainerOptions)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: damaged, {error!r}") from error


def _parameters(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: state[name] for name, _ in module.named_parameters() if name in state}


def _length(dataset: Dataset[Any]) -> int:
    size = getattr(dataset, "__len__", None)
    if size is None:
        raise UsageError("the data set has no length; the order of an epoch can't be drawn")
    if not (length := int(size())):
        raise UsageError("the data set is empty")
    return length


def _pair(batch: object) -> tuple[Tensor, Tensor]:
    match batch:
        case [Tensor() as text_embeddings, Tensor() as images]:
            return text_embeddings, images
    raise UsageError("an item of the data set must be a pair of tensors: a text embedding and an image")
