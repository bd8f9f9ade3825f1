"""The trainer on handwritten digits, and samples of what it learnt: what `graphlint reference` runs.

May import `errors`, msgspec and torch; scikit-learn and Pillow come in with the data and the pictures.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import torch
from torch import Tensor

from graphlint.errors import CheckpointError, UsageError
from graphlint.reference import checkpoints
from graphlint.reference.captions import HELD_OUT_CAPTIONS
from graphlint.reference.checkpoints import read_checkpoint
from graphlint.reference.data import CaptionedDigits
from graphlint.reference.embedding import TextEmbedding, embedding_from
from graphlint.reference.models import DIGIT_OPTIONS, NOISE_SIZE, DigitDiscriminator, DigitGenerator
from graphlint.reference.options import RunOptions, TrainerOptions
from graphlint.reference.run import SampleTexts, TrainingRun, stored_options
from graphlint.reference.trainer import SplitDeviceGANTrainer, sample_noise

if TYPE_CHECKING:
    from PIL.Image import Image

_KIND = "digits"
_EXTRA = ("numpy", "sklearn", "PIL")


class _Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint of a run on the digits keeps for sampling from it and for going on with it."""

    kind: str
    noise_size: int
    embedding: dict[str, Any]
    devices: tuple[str | None, str | None] = (None, None)


def require_extra() -> None:
    """Imports the libraries of the extra.

    Raises:
        UsageError: one is missing; the text says what to install.
    """
    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"graphlint reference needs scikit-learn and Pillow, and {error.name} is missing; install "
                "torch-graphlint[reference]"
            ) from error


def digits_run(
    out: Path,
    *,
    devices: tuple[str | None, str | None],
    run_changes: Mapping[str, Any],
    trainer_changes: Mapping[str, Any],
    resume: bool,
    stream: TextIO | None,
) -> TrainingRun:
    """Returns a run on the digits, as its checkpoint says if it is to be resumed, else with the defaults.

    Args:
        out: the directory of the run.
        devices: the generator's and the discriminator's; None: where a resumed run had it, else the first
            GPU if there is one for the generator, and the CPU for the discriminator.
        run_changes: fields of `RunOptions` that are asked for; `steps` at least, if it is a new run.
        trainer_changes: fields of `TrainerOptions` that are asked for.
        resume: whether the directory holds the run already.
        stream: where progress is shown; None: nowhere.

    Raises:
        UsageError: an option is out of range, or there is no such device.
        CheckpointError: the checkpoint is damaged, or is no run on the digits.
    """
    options, trainer_options = RunOptions(steps=int(run_changes.get("steps", 1))), DIGIT_OPTIONS
    then: tuple[str | None, str | None] = (None, None)
    embedding = None
    if resume and (out / checkpoints.FILE).exists():
        state = read_checkpoint(out / checkpoints.FILE)
        options, trainer_options = stored_options(state, out / checkpoints.FILE)
        stored = _recipe(state, out / checkpoints.FILE)
        then, embedding = stored.devices, _rebuilt(stored, out / checkpoints.FILE)
    options = msgspec.structs.replace(options, **run_changes)
    trainer_options = msgspec.structs.replace(trainer_options, **trainer_changes)
    dataset = CaptionedDigits(embedding, seed=options.seed)
    used = (devices[0] or then[0] or _first_gpu(), devices[1] or then[1] or "cpu")
    recipe = {
        "kind": _KIND,
        "noise_size": NOISE_SIZE,
        "embedding": dataset.embedding.describe(),
        "devices": used,
    }
    return TrainingRun(
        _trainer(dataset.embedding, used, trainer_options, options.seed),
        dataset,
        out,
        options,
        texts=_held_out(dataset.embedding),
        recipe=recipe,
        stream=stream,
    )


def sample_digits(checkpoint: Path, texts: Sequence[str], *, columns: int, seed: int) -> "Image":
    """Returns a picture with a row of images for each text, drawn on the CPU.

    Args:
        checkpoint: of a run on the digits.
        texts: what to draw; the embedding must know some word or part of a word of each.
        columns: images of each text.
        seed: of the noise.

    Raises:
        UsageError: nothing of a text is known.
        CheckpointError: the file can't be read, or is of another run.
    """
    from graphlint.reference.grids import draw_grid

    state = read_checkpoint(checkpoint)
    recipe = _recipe(state, checkpoint)
    embedding = _rebuilt(recipe, checkpoint)
    embedded = _embedded(embedding, texts)
    generator = DigitGenerator(recipe.noise_size, embedding.dimension).eval()
    try:
        trained = state["trainer"]
        generator.load_state_dict(trained["generator"] if trained["average"] is None else trained["average"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint}: damaged, {error!r}") from error
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint}: of another version of the networks") from error
    repeated = embedded.repeat_interleave(columns, dim=0)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        images = generator(sample_noise(repeated, recipe.noise_size, source), repeated)
    return draw_grid(images.reshape(len(texts), columns, *images.shape[1:]), texts)


def _trainer(
    embedding: TextEmbedding, devices: tuple[str, str], options: TrainerOptions, seed: int
) -> SplitDeviceGANTrainer:
    """Returns a trainer of new networks, whose weights the seed decides."""
    torch.manual_seed(seed)
    return SplitDeviceGANTrainer(
        DigitGenerator(NOISE_SIZE, embedding.dimension),
        DigitDiscriminator(embedding.dimension),
        generator_device=devices[0],
        discriminator_device=devices[1],
        noise_size=NOISE_SIZE,
        options=options,
        seed=seed,
    )


def _recipe(state: Mapping[str, Any], path: Path) -> _Recipe:
    recipe = state.get("recipe")
    if not isinstance(recipe, dict) or recipe.get("kind") != _KIND:
        raise CheckpointError(f"{path}: no run of graphlint reference train")
    try:
        return msgspec.convert(recipe, _Recipe)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: damaged, {error}") from error


def _rebuilt(recipe: _Recipe, path: Path) -> TextEmbedding:
    try:
        return embedding_from(recipe.embedding)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: damaged, {error!r}") from error


def _held_out(embedding: TextEmbedding) -> SampleTexts:
    """Returns a caption of each digit that is never trained on."""
    captions = tuple(HELD_OUT_CAPTIONS[digit][0] for digit in sorted(HELD_OUT_CAPTIONS))
    return SampleTexts(captions, embedding.embed(captions))


def _embedded(embedding: TextEmbedding, texts: Sequence[str]) -> Tensor:
    embedded = embedding.embed(texts)
    for text, vector in zip(texts, embedded, strict=True):
        if not bool(vector.any()):
            raise UsageError(
                f"nothing in the text {text!r} is known to the embedding; try 'a handwritten seven'"
            )
    return embedded


def _first_gpu() -> str:
    return "cuda:0" if torch.cuda.is_available() else "cpu"
