"""Describes the exception that ended a run: the user's frames, and what the failing line named.

May import `record`, the rest of `capture` and torch.
"""

import ast
import linecache
import textwrap
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

import torch

from graphlint.capture.messages import kind_of, message_of
from graphlint.capture.names import TOUCHES_SNAPSHOT
from graphlint.capture.recorder import Recorder, sizes_of
from graphlint.capture.unasked import attributes_of
from graphlint.record.events import ScriptError
from graphlint.record.faults import Operand
from graphlint.record.identity import TensorId
from graphlint.record.tables import Frame

_MAX_FRAMES = 16


def describe_error(error: BaseException, recorder: Recorder) -> ScriptError:
    """Returns the event for an exception that reached the top of the script."""
    frames: list[tuple[FrameType, int]] = []
    trace = error.__traceback__
    while trace is not None:
        if recorder.sites.is_user_code(trace.tb_frame.f_code):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    frames.reverse()
    rows = []
    for frame, line in frames[:_MAX_FRAMES]:
        code = frame.f_code
        recorder.sites.embed_source(code.co_filename)
        rows.append(Frame(code.co_filename, line, code.co_qualname, code.co_firstlineno))
    operands = _operands(*frames[0], recorder) if frames else ()
    return ScriptError(
        serial=recorder.next_serial(),
        type=kind_of(error),
        message=message_of(error),
        frames=tuple(rows),
        operands=operands,
    )


def bare_error(error: BaseException, recorder: Recorder) -> ScriptError:
    """Returns the event for an exception of which nothing more can be told than Python itself would print."""
    return ScriptError(serial=recorder.next_serial(), type=kind_of(error), message=message_of(error))


def _operands(frame: FrameType, line: int, recorder: Recorder) -> tuple[Operand, ...]:
    names = _names_on_line(frame.f_code.co_filename, line)
    if not names:
        return ()
    variables = frame.f_locals
    scope = {**frame.f_globals, **variables}
    found = []
    for name in names:
        value = _resolve(name, scope)
        operand = _operand(name, value, recorder)
        if operand is not None:
            found.append(operand)
    own = TOUCHES_SNAPSHOT.isdisjoint(frame.f_code.co_names)
    if own and frame.f_code.co_flags & CO_OPTIMIZED and isinstance(variables, dict):
        variables.clear()
    return tuple(found)


def _names_on_line(path: str, line: int) -> list[str]:
    """Returns the dotted names on a source line, in order; none when it is only part of a statement."""
    text = textwrap.dedent(linecache.getline(path, line)).strip()
    for attempt in (text, text.rstrip(":") + ": pass", text.removesuffix(",")):
        try:
            tree = ast.parse(attempt)
        except SyntaxError:
            continue
        names: dict[str, None] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                names.setdefault(ast.unparse(node))
        return list(names)
    return []


def _resolve(dotted: str, scope: dict[str, Any]) -> Any:
    """Returns what a dotted name stands for, without running the user's properties."""
    first, *rest = dotted.split(".")
    value: Any = scope.get(first)
    for part in rest:
        value = _held_by(value).get(part)
    return value


def _held_by(value: Any) -> dict[str, Any]:
    """Returns an object's attributes by name; a module's parts are among them."""
    held = dict(attributes_of(value))
    if issubclass(type(value), torch.nn.Module):
        for parts in ("_modules", "_parameters", "_buffers"):
            held.update(held.get(parts, {}))
    return held


def _operand(name: str, value: Any, recorder: Recorder) -> Operand | None:
    if issubclass(type(value), torch.nn.Module):
        parameter = next(value.parameters(), None)
        if parameter is None:
            return None
        return Operand(f"{name}'s parameters", recorder.device(parameter), (), None)
    if issubclass(type(value), torch.Tensor):
        number = recorder.tensors.find(value)
        return Operand(
            name,
            recorder.device(value),
            sizes_of(value),
            None if number is None else TensorId(number),
        )
    return None
