"""Finds, compiles and stages the program to run, the way `python FILE` and `python -m MODULE` do.

Imports the standard library and `errors`; nothing here imports torch or runs a line of the script itself
(finding `-m a.b` imports the package `a`, as Python does).
"""

import builtins
import importlib.util
import io
import os
import sys
import warnings
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import msgspec

from graphlint.errors import UsageError


class ScriptTarget(msgspec.Struct, frozen=True):
    """A script file, named as the user named it."""

    name: str


class ModuleTarget(msgspec.Struct, frozen=True):
    """A module to run as `python -m` does."""

    name: str


Target = ScriptTarget | ModuleTarget


class Program(msgspec.Struct, frozen=True):
    """Compiled code with the `__main__` module that it is to run in."""

    code: CodeType
    main: ModuleType


def load_script(target: ScriptTarget) -> Program:
    """Returns the compiled script.

    Raises:
        UsageError: it is missing, a directory, unreadable or not Python; the text is one line.
    """
    path = os.path.abspath(target.name)  # noqa: PTH100 - like Python, symbolic links are not followed
    try:
        with io.open_code(path) as stream:
            source = stream.read()
    except IsADirectoryError as error:
        raise UsageError(f"{target.name} is a directory; name the script in it") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"can't read the script {target.name}: {reason}") from error
    code = _compile(source, path, shown=target.name)
    main = _main_module(spec=None, file=path, loader=SourceFileLoader("__main__", path))
    return Program(code, main)


def _compile(source: bytes, path: str, *, shown: str) -> CodeType:
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(f"{_place(shown, error)}: not valid Python: {error.msg}") from error
    except (ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"{shown}: not valid Python: {error}") from error


def _place(shown: str, error: SyntaxError) -> str:
    return f"{shown}:{error.lineno}" if error.lineno else shown


def stage_script(target: ScriptTarget, program: Program, argv: tuple[str, ...]) -> None:
    """Makes `sys.argv`, `sys.path[0]` and `__main__` what `python FILE ARGS` makes them."""
    path = Path(target.name)
    sys.argv = [target.name, *argv]
    _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - a string, as in sys.path
    sys.modules["__main__"] = program.main


def stage_module(argv: tuple[str, ...]) -> None:
    """Makes `sys.argv` and `sys.path[0]` what `python -m` makes them while it looks for the module.

    Raises:
        UsageError: the working directory is gone.
    """
    try:
        directory = os.getcwd()  # noqa: PTH109 - a string, as in sys.path
    except OSError as error:
        raise UsageError(f"the working directory can't be read: {error.strerror}") from error
    sys.argv = ["-m", *argv]
    _set_first_path(directory)


def _set_first_path(directory: str) -> None:
    """Replaces the entry that Python made for graphlint's own start; under `python -P` there is none."""
    if not sys.flags.safe_path:
        sys.path[:1] = [directory]


def load_module(target: ModuleTarget) -> Program | UsageError:
    """Returns the module's code, staged as `__main__`, or the error that says why there is none.

    Importing the parent packages runs the user's code: what that raises passes through as it is, which is
    why a wrong name is returned and not raised.
    """
    found = _find_spec(target.name)
    if isinstance(found, UsageError):
        return found
    code = _module_code(found, target.name)
    if isinstance(code, UsageError):
        return code
    main = _main_module(spec=found, file=found.origin, loader=found.loader)
    sys.argv[0] = found.origin or target.name
    sys.modules["__main__"] = main
    return Program(code, main)


def _find_spec(name: str) -> ModuleSpec | UsageError:
    if name.startswith("."):
        return UsageError(f"-m {name}: relative module names can't be run; give the full name")
    if (spec := _search(name)) is None:
        return UsageError(f"no module named {name}")
    if spec.submodule_search_locations is None:
        return spec
    if name.endswith(".__main__") or (inner := _search(f"{name}.__main__")) is None:
        return UsageError(f"{name} is a package without a __main__ module; name a module in it")
    return inner


def _search(name: str) -> ModuleSpec | None:
    loaded = name in sys.modules
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
    except ValueError:  # a module in sys.modules that has no spec, `__main__` above all
        return None
    if name in sys.modules and not loaded:
        warnings.warn(
            f"{name!r} found in sys.modules after import of package {name.rpartition('.')[0]!r}, but prior "
            f"to execution of {name!r}; this may result in unpredictable behaviour",
            RuntimeWarning,
            stacklevel=2,
        )
    return spec


def _module_code(spec: ModuleSpec, name: str) -> CodeType | UsageError:
    get_code = getattr(spec.loader, "get_code", None)
    try:
        code = get_code(spec.name) if get_code else None
    except SyntaxError as error:
        return UsageError(f"{_place(spec.origin or name, error)}: not valid Python: {error.msg}")
    except (ImportError, OSError) as error:
        return UsageError(f"can't read the module {name}: {error}")
    if not isinstance(code, CodeType):
        return UsageError(f"{name} is not written in Python and can't be run")
    return code


def _main_module(*, spec: ModuleSpec | None, file: str | None, loader: object) -> ModuleType:
    """Returns a `__main__` with the attributes that the interpreter gives it."""
    main = ModuleType("__main__")
    namespace = vars(main)
    namespace.update(__package__=spec.parent if spec else None, __loader__=loader, __spec__=spec)
    if sys.version_info < (3, 14):
        namespace["__annotations__"] = {}
    namespace.update(__builtins__=builtins, __file__=file, __cached__=spec.cached if spec else None)
    return main
