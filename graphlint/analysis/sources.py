"""The user's statements: from a line of the record to the source that stands there.

May import `record` only. Source text words a message; nothing is ever decided by it. Where the source is
missing or does not parse, every question has an answer that says less.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from graphlint.record.tables import Frame
from graphlint.record.trace import Trace

_QUOTE_LIMIT = 72
_BACKWARDS = re.compile(r"\.backward\(|\bautograd\.grad\(")
_NEWLINE = re.compile(r"\r\n|\r|\n")  # as Python numbers lines; `str.splitlines` breaks at form feeds too


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the user's source.

    Attributes:
        path: the file, as the record has it.
        first_line: 1-based line where it begins. A compound statement (`if`, `with`, `def`) counts as
            its header alone.
        last_line: 1-based line where it ends.
        text: its source, on one line.
        targets: what it assigns to, as source (`fake_images`, `self.state`).
        calls: the call expressions in it, outermost first.
        opens_block: whether it is a `with`.
    """

    path: str
    first_line: int
    last_line: int
    text: str
    targets: tuple[str, ...]
    calls: tuple[str, ...]
    opens_block: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """The innermost run of statements that one of them belongs to: a function's body, a branch, a file.

    Attributes:
        first_line: 1-based line of its first statement.
        last_line: 1-based line where its last statement ends.
        outermost: whether it is the whole file.
        left_before: whether a statement before the one asked for may leave it early (`continue`, `return`).
    """

    first_line: int
    last_line: int
    outermost: bool
    left_before: bool


class Sources:
    """Statements of a trace's sources, parsed once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._cache: dict[tuple[str, int], Statement | None] = {}

    @cached_property
    def _trees(self) -> dict[str, ast.Module]:
        trees: dict[str, ast.Module] = {}
        for path, text in self._trace.sources.items():
            try:
                trees[path] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
        return trees

    @property
    def paths(self) -> tuple[str, ...]:
        """The files whose sources parse."""
        return tuple(self._trees)

    def tree(self, path: str) -> ast.Module | None:
        """Returns the syntax of a whole file; None when it is unknown or doesn't parse."""
        return self._trees.get(path)

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        return {path: _NEWLINE.split(text) for path, text in self._trace.sources.items()}

    def line(self, path: str, line: int) -> str | None:
        """Returns the text of a line (1-based), without its indentation; None when not recorded."""
        lines = self._lines.get(path, [])
        return lines[line - 1].strip() if 0 < line <= len(lines) else None

    def statement(self, path: str, line: int) -> Statement | None:
        """Returns the innermost statement that covers a line; None when the source can't say."""
        key = (path, line)
        if key not in self._cache:
            self._cache[key] = self._find(path, line)
        return self._cache[key]

    def last_line(self, path: str, line: int) -> int:
        """Returns the last line of the statement at a line, the line itself when unknown."""
        statement = self.statement(path, line)
        return statement.last_line if statement is not None else line

    def call(self, path: str, line: int, like: re.Pattern[str]) -> str | None:
        """Returns the first call on a line whose text is like that: a line may hold several statements.

        None when there is none, or it is too long to quote.
        """
        tree = self._trees.get(path)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr | ast.Assign | ast.Return) and _covers(node, line):
                for call in _statement(path, node, self._lines[path]).calls:
                    if len(call) <= _QUOTE_LIMIT and like.search(call):
                        return call
        return None

    def differentiated(self, path: str, line: int) -> str | None:
        """Returns what the backward call on a line is called on, as in `real_loss + fake_loss`.

        None where the line doesn't tell: no such call, or one on something else than a tensor, as
        `fabric.backward(loss)` may be.
        """
        spelled = self.call(path, line, _BACKWARDS)
        if spelled is None:
            return None
        call = ast.parse(spelled, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return None
        function, first = call.func, next(iter(call.args), None)
        module = isinstance(function.value, ast.Attribute | ast.Name) and ast.unparse(
            function.value
        ).endswith("autograd")
        if module:
            return None if first is None or isinstance(first, ast.Starred) else ast.unparse(first)
        return ast.unparse(function.value) if function.attr == "backward" and first is None else None

    def quote(self, path: str, line: int) -> str | None:
        """Returns the outermost call at a line, as in `discriminator(fake_images, text_embeddings)`.

        A statement that is no call gives its whole value. None when there is no source or it is too
        long to quote.
        """
        statement = self.statement(path, line)
        if statement is None:
            return None
        spelled = statement.calls[0] if statement.calls else statement.text
        return spelled if len(spelled) <= _QUOTE_LIMIT else None

    def function(self, frame: Frame) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Returns the syntax of the function that a frame runs; None for a module or unknown source."""
        tree = self._trees.get(frame.path)
        if tree is None:
            return None
        own_name = frame.function.rpartition(".")[2]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == own_name:
                lines = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
                if frame.first_line in lines:
                    return node
        return None

    def store_line(self, frame: Frame, names: frozenset[str]) -> int | None:
        """Returns the line in a frame's function that stores one of its names in an attribute or an item."""
        function = self.function(frame)
        if function is None:
            return None
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
                kept = [t for t in node.targets if isinstance(t, ast.Attribute | ast.Subscript)]
                if kept:
                    return node.lineno
        return None

    def handed_on(self, method: str) -> tuple[str, int] | None:
        """Returns the file and line that hand on a method, as in `on("epoch", scheduler.step)`, uncalled.

        None when there is no such line, or more than one.
        """
        found: dict[tuple[str, int], None] = {}
        for path, tree in self._trees.items():
            called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
            for node in ast.walk(tree):
                if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
                    continue
                if id(node) not in called and ast.unparse(node) == method:
                    found[path, node.lineno] = None
        return next(iter(found)) if len(found) == 1 else None

    def loop_end(self, path: str, line: int) -> int | None:
        """Returns the last line of the innermost loop around a line; None outside loops."""
        tree = self._trees.get(path)
        if tree is None:
            return None
        ends = [
            node.end_lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.For | ast.While | ast.AsyncFor)
            and node.end_lineno is not None
            and node.lineno <= line <= node.end_lineno
        ]
        return min(ends) if ends else None

    def block(self, path: str, line: int) -> Block | None:
        """Returns the block that the statement at a line stands in; None when the source can't say."""
        tree = self._trees.get(path)
        if tree is None:
            return None
        found = [(body, place) for body in _bodies(tree) if (place := _place(body, line)) is not None]
        if not found:
            return None
        body, place = max(reversed(found), key=lambda one: one[0][0].lineno)
        jumps = ast.Continue | ast.Break | ast.Return | ast.Raise
        return Block(
            first_line=body[0].lineno,
            last_line=body[-1].end_lineno or body[-1].lineno,
            outermost=body is tree.body,
            left_before=any(
                isinstance(node, jumps) for statement in body[:place] for node in ast.walk(statement)
            ),
        )

    def _find(self, path: str, line: int) -> Statement | None:
        tree = self._trees.get(path)
        if tree is None:
            return None
        best: ast.stmt | None = None
        for node in ast.walk(tree):
            if not isinstance(node, ast.stmt):
                continue
            first, last = _span(node)
            if first <= line <= last and (best is None or _size(node) <= _size(best)):
                best = node
        return _statement(path, best, self._lines[path]) if best is not None else None


def _covers(node: ast.stmt, line: int) -> bool:
    first, last = _span(node)
    return first <= line <= last


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yields every run of statements, each before those inside it."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _place(body: list[ast.stmt], line: int) -> int | None:
    """Returns which statement of a block holds a line; None where none does."""
    for place, node in enumerate(body):
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            return place
    return None


def _span(node: ast.stmt) -> tuple[int, int]:
    """Returns the lines of a statement; of a compound one, those of its header."""
    first = node.lineno
    last = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
        last = max(first, min(last, body[0].lineno - 1))
    return first, last


def _size(node: ast.stmt) -> int:
    first, last = _span(node)
    return last - first


def _statement(path: str, node: ast.stmt, lines: list[str]) -> Statement:
    first, last = _span(node)
    compound = isinstance(getattr(node, "body", None), list)
    spelled = ast.unparse(node)
    return Statement(
        path=path,
        first_line=first,
        last_line=last,
        text=spelled.splitlines()[0] if compound else " ".join(spelled.split()),
        targets=tuple(_targets(node)),
        calls=tuple(_spelled(call, lines) for call in _calls(node)),
        opens_block=isinstance(node, ast.With | ast.AsyncWith),
    )


def _targets(node: ast.stmt) -> Iterator[str]:
    """Yields what a statement assigns to; the parts of a tuple one by one."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        found = [node.target]
    while found:
        target = found.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            found = [*target.elts, *found]
        else:
            yield ast.unparse(target)


def _spelled(node: ast.expr, lines: list[str]) -> str:
    """Returns an expression as the user wrote it; as Python would write it where it spans lines."""
    if node.end_lineno == node.lineno and node.end_col_offset is not None and node.lineno <= len(lines):
        return lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
    return ast.unparse(node)


def _calls(node: ast.stmt) -> Iterator[ast.expr]:
    """Yields the calls of a statement (of a compound one, of its header), outermost first."""
    found: list[ast.AST] = [node]
    while found:
        current = found.pop(0)
        if isinstance(current, ast.Call):
            yield current
        children = ast.iter_child_nodes(current)
        found.extend(child for child in children if not isinstance(child, ast.stmt))
