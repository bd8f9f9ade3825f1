"""The statements that put something into a variable, an attribute or a collection, as the source has them.

May import `record` and `analysis.sources`. A list's `append` is no call into torch: the record shows what the
list holds, and the source alone at which line it got it. Nothing is decided here.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from graphlint.analysis.sources import Sources
from graphlint.record.live import Holding
from graphlint.record.tables import Frame

_MOST = 3
_EMPTY = (ast.Constant, ast.List, ast.Dict, ast.Set, ast.Tuple)


@dataclass(frozen=True, slots=True)
class Keeping:
    """A statement that keeps a value.

    Attributes:
        frame: its line.
        kind: `call`: a method of the holder is given it; `add`: `+=` and its like; `item`: it is assigned to
            an item of the holder; `assign`: to the holder itself.
        target: what is written to, as source.
        value: what is kept, as source.
        method: the method's name, for the first kind.
    """

    frame: Frame
    kind: Literal["call", "add", "item", "assign"]
    target: str
    value: str
    method: str = ""


class Keepers:
    """Finds the statements."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def of(self, holding: Holding) -> tuple[Keeping, ...]:
        """Returns the statements that put something into a holder: in its own function, else anywhere."""
        frame = holding.frame
        function = self._sources.function(frame)
        own: ast.AST | None = function if function is not None else self._sources.tree(frame.path)
        found = list(_keepings(own, frame, holding.name)) if own is not None else []
        if not found:
            tail = _tail(holding.name)
            found = [
                keeping
                for path in self._sources.paths
                for keeping in _keepings(self._sources.tree(path), Frame(path, 1, "", 1), tail, anywhere=True)
            ]
        if holding.collection:
            found = [keeping for keeping in found if keeping.kind != "assign"] or found
        return tuple(found[:_MOST])

    def callers(self, holding: Holding, keeping: Keeping) -> tuple[Frame, ...]:
        """Returns the lines that call the method in which a statement stands, of the holder's own file."""
        owner = holding.name.rpartition(".")[0]
        method = _around(self._sources.tree(keeping.frame.path), keeping.frame.line)
        own = self._sources.tree(holding.frame.path)
        if not owner or method is None or own is None:
            return ()
        lines = [
            node.lineno
            for node in ast.walk(own)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == method.name
            and ast.unparse(node.func.value) == owner
        ]
        at = holding.frame
        return tuple(Frame(at.path, line, at.function, at.first_line) for line in lines[:_MOST])


def _around(tree: ast.AST | None, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Returns the innermost function whose source covers a line."""
    found = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (
            node.end_lineno or node.lineno
        ):
            found = node
    return found


def _tail(name: str) -> str:
    """Returns the last attribute's name where there is one: other functions know the rest by other names."""
    plain = name.partition("[")[0]
    return plain.rpartition(".")[2]


def _keepings(tree: ast.AST | None, frame: Frame, name: str, *, anywhere: bool = False) -> Iterator[Keeping]:
    for node in ast.walk(tree) if tree is not None else ():
        for kind, target, value, method in _kept_by(node):
            spelled = ast.unparse(target)
            same = spelled == name or (anywhere and _tail(spelled) == name)
            if same and not (kind == "assign" and isinstance(value, _EMPTY)):
                line = getattr(node, "lineno", frame.line)
                at = Frame(frame.path, line, frame.function, frame.first_line)
                yield Keeping(at, kind, spelled, ast.unparse(value), method)


_Kind = Literal["call", "add", "item", "assign"]


def _kept_by(node: ast.AST) -> Iterator[tuple[_Kind, ast.expr, ast.expr, str]]:
    """Yields what a statement writes to and what it puts there."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=holder, attr=method), args=[*_, value])):
            yield "call", holder, value, method
        case ast.Lambda(body=ast.Call(func=ast.Attribute(value=holder, attr=method), args=[*_, value])):
            yield "call", holder, value, method
        case ast.AugAssign(target=target, value=value):
            yield "add", target, value, ""
        case ast.Assign(targets=targets, value=value):
            for written in _flat(targets):
                if isinstance(written, ast.Subscript):
                    yield "item", written.value, value, ""
                yield "assign", written, value, ""
        case _:
            return


def _flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flat(target.elts)
        else:
            yield target
