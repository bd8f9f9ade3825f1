"""Tells the runner the moment that the script has imported torch, so that graphlint never imports it earlier.

What a script sets before `import torch` (`OMP_NUM_THREADS`, allocator and library settings) takes effect when
torch is loaded; importing it on the script's behalf would change the run. Imports the standard library only.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Self

_AWAITED = "torch"


class Arrival(MetaPathFinder):
    """Calls `arrived` once, right after torch's own code has run, in the thread that made this object.

    A context manager: the finder is on `sys.meta_path` inside the block only. `missed` tells that another
    thread imported torch first, `failed` that the import was begun and came to nothing; nothing was called
    then.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._thread = threading.get_ident()
        self.missed = False
        self.failed = False
        self._waiting = False

    def __enter__(self) -> Self:
        if _AWAITED in sys.modules:
            self._arrived()
        else:
            self._waiting = True
            sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting = False
        self._leave()

    def _leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns torch's own spec, its loader made to report; None for any other module."""
        del path, target
        if fullname != _AWAITED:
            return None
        self._leave()
        self.failed = True
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        else:
            self._wait_again()
        return spec

    def _wait_again(self) -> None:
        """Takes its place again after an import that came to nothing: the script may try once more."""
        if self._waiting and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def _watch(self, loader: Loader) -> None:
        """Lets this one loader object report when it has run the module, and takes that back by then."""
        plain = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del vars(loader)["exec_module"]
            try:
                plain(module)
                self.failed = False
            finally:
                if self.failed:
                    self._wait_again()
            if threading.get_ident() == self._thread:
                self._arrived()
            else:
                self.missed = True

        vars(loader)["exec_module"] = exec_module
