"""Saving and loading under simulation; imports torch.

A checkpoint that is saved under simulation says "cpu" for every tensor, so that plain torch on a CPU can
load it. Where each was is remembered for as long as the simulation runs, by the file it went to; a tensor
from a file of which nothing is remembered answers "cpu" and mixes with everything.
"""

import os
import weakref
from functools import wraps
from typing import Any

import torch
import torch.serialization

from graphlint.capture.devices.labels import label_of
from graphlint.capture.devices.mode import SimulationMode
from graphlint.capture.devices.patches import Patches

_UNSURE_CPU = label_of("cpu", certain=False)


class _Files:
    """Where the storages of each saved file were, in the order of their first appearance."""

    def __init__(self) -> None:
        self._by_path: dict[str, list[str]] = {}
        self._by_buffer: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self.saving: dict[int, str] | None = None
        self.loading: list[str] | None = None

    def remember(self, file: Any, places: list[str]) -> None:
        path = _path(file)
        if path is not None:
            self._by_path[path] = places
            return
        try:
            self._by_buffer[file] = places
        except TypeError:
            return

    def recall(self, file: Any) -> list[str] | None:
        path = _path(file)
        if path is not None:
            return self._by_path.get(path)
        try:
            return self._by_buffer.get(file)
        except TypeError:
            return None


def _path(file: Any) -> str | None:
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.realpath(name) if isinstance(name, (str, os.PathLike)) else None


def patch_checkpoints(patches: Patches, mode: SimulationMode) -> None:
    """Installs the patches of this module."""
    files = _Files()
    _patch_save(patches, mode, files)
    _patch_load(patches, mode, files)


def _patch_save(patches: Patches, mode: SimulationMode, files: _Files) -> None:
    real_save = torch.save
    real_tag = torch.serialization.location_tag

    @wraps(real_save)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        before, files.saving = files.saving, {}
        try:
            real_save(obj, f, *args, **kwargs)
            files.remember(f, list(files.saving.values()))
        finally:
            files.saving = before

    @wraps(real_tag)
    def location_tag(storage: Any) -> str:
        if files.saving is not None:
            untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
            label = mode.table.get_storage(untyped)
            files.saving.setdefault(untyped._cdata, "cpu" if label is None else label.device)
        return str(real_tag(storage))

    patches.set(torch, "save", save)
    patches.set(torch.serialization, "save", save)
    patches.set(torch.serialization, "location_tag", location_tag)


def _patch_load(patches: Patches, mode: SimulationMode, files: _Files) -> None:
    real_load = torch.load

    @wraps(real_load)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        before, files.loading = files.loading, files.recall(f)
        try:
            return real_load(f, *args, **kwargs)
        finally:
            files.loading = before

    def get_restore_location(map_location: Any) -> Any:
        places = None if files.loading is None else iter(files.loading)

        def restore(storage: Any, location: str) -> Any:
            known = None if places is None else next(places, None)
            return _restore(mode, map_location, storage, location, known)

        return restore

    patches.set(torch, "load", load)
    patches.set(torch.serialization, "load", load)
    patches.set(torch.serialization, "_get_restore_location", get_restore_location)


def _restore(mode: SimulationMode, map_location: Any, storage: Any, location: str, known: str | None) -> Any:
    """Returns a loaded storage with the label that the file and `map_location` give it."""
    saved = known if known is not None else location
    if callable(map_location):
        result = map_location(storage, saved)
        if result is not None:
            return result
        return _place(mode, storage, saved, sure=known is not None)
    if map_location is None:
        return _place(mode, storage, saved, sure=known is not None)
    if isinstance(map_location, dict):
        target = map_location.get(saved, saved)
        return _place(mode, storage, str(target), sure=known is not None or saved in map_location)
    target = map_location.decode() if isinstance(map_location, bytes) else map_location
    return _place(mode, storage, str(target), sure=True)


def _place(mode: SimulationMode, storage: Any, location: str, *, sure: bool) -> Any:
    device = torch.device(location)
    if device.type not in {"cpu", "cuda"}:
        return torch.serialization.default_restore_location(storage, location)  # type: ignore[no-untyped-call]
    if device.type == "cuda" and (device.index or 0) >= mode.machine.count:
        raise RuntimeError(
            f"Attempting to deserialize object on CUDA device {device.index} but torch.cuda.device_count() "
            f"is {mode.machine.count}. Please use torch.load with map_location to map your storages to an "
            "existing device."
        )
    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    if device.type == "cuda":
        mode.table.put_storage(untyped, label_of(mode.machine.name(device)))
    elif not sure:
        mode.table.put_storage(untyped, _UNSURE_CPU)
    return storage
