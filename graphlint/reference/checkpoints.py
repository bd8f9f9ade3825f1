"""Checkpoints: written so that a crash leaves the old file or the new one, read without running any code.

May import `errors` and torch.
"""

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from graphlint.errors import CheckpointError, UsageError
from graphlint.reference.writing import replacing

FILE = "checkpoint.pt"
FORMAT = "graphlint reference checkpoint"
VERSION = 1


def write_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Writes the state in place of the file, whole or not at all, and on the disk when this returns.

    Args:
        state: plain values and tensors, in dicts, lists and tuples.
        path: the file.

    Raises:
        UsageError: it can't be written.
    """
    try:
        with replacing(path) as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
    except OSError as error:
        raise UsageError(f"can't write the checkpoint {path}: {error.strerror or error}") from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Returns the state with its tensors on the CPU; a file that would run code when read is refused.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint of this trainer, or of a version to come.
    """
    try:
        with path.open("rb") as file:
            intact = _is_intact(file)
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror or error}") from error
    if not intact:
        raise CheckpointError(f"{path}: damaged, or no checkpoint of the reference trainer")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a foreign pickle before it refuses it
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, LookupError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: no checkpoint of the reference trainer") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of the reference trainer")
    if state.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: a checkpoint of version {state.get('version')}; this graphlint reads version {VERSION}"
        )
    return state


def on_host(value: Any) -> Any:
    """Returns the value with each tensor copied into the host's memory, so that training can't change it."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: on_host(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_host(entry) for entry in value)
    return value


def non_finite(value: Any, name: str = "") -> str | None:
    """Returns the dotted name of the first tensor in the value that holds a NaN or an infinity."""
    if isinstance(value, Tensor):
        return name if value.is_floating_point() and not bool(value.isfinite().all()) else None
    if isinstance(value, Mapping):
        entries = iter(value.items())
    elif isinstance(value, (list, tuple)):
        entries = enumerate(value)
    else:
        return None
    found = (non_finite(entry, f"{name}.{key}" if name else str(key)) for key, entry in entries)
    return next((entry for entry in found if entry is not None), None)


def _is_intact(file: BinaryIO) -> bool:
    """Whether the file is what `torch.save` wrote, by its checksums, which `torch.load` doesn't look at."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, LookupError, NotImplementedError, ValueError, RuntimeError):
        return False
