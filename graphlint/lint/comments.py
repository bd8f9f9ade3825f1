"""The comments `# graphlint: ignore[GL301] reason` in the sources of a trace; may import `record`.

Read with Python's own tokenizer, so that the same words in a string are no comment, and from what the trace
stores, so that a saved trace is judged alike anywhere.
"""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping

import msgspec

_PARTS = re.compile(r"(?:^|(?<=\s))#(?!\d)")  # "issue #12" goes on
_ADDRESSED = re.compile(r"\s*graphlint\s*:\s*(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_IGNORE = re.compile(r"ignore\s*\[(?P<entries>[^\[\]]*)\](?P<reason>.*)", re.IGNORECASE | re.DOTALL)
_MEANT = re.compile(r"ignore\b|.*\bGL\d", re.IGNORECASE | re.DOTALL)
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SEPARATORS = " \t:;,.-\u2013\u2014"
_BETWEEN = frozenset({tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER})
"""Tokens that belong to no statement; the NEWLINE that ends one is met first."""
_TORN = (tokenize.TokenError, SyntaxError, ValueError)


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    """A comment that is addressed to graphlint.

    Attributes:
        path: the file.
        line: the comment's own line, 1-based.
        first_line: first line of the statement that it speaks for: the one that it stands in or behind; for a
            comment on a line of its own the next one. 0 where no statement follows.
        last_line: the last line of that statement; of a compound statement, of its header.
        entries: the rules as they were written; empty when it can't be read.
        reason: what was written after the brackets.
        problem: why it can't be read, in words.
    """

    path: str
    line: int
    first_line: int = 0
    last_line: int = 0
    entries: tuple[str, ...] = ()
    reason: str = ""
    problem: str | None = None

    def covers(self, path: str, line: int) -> bool:
        """Returns whether it speaks for a line."""
        return path == self.path and (self.first_line <= line <= self.last_line or line == self.line)


def comments(sources: Mapping[str, str]) -> tuple[Comment, ...]:
    """Returns the comments of all files that are addressed to graphlint, by file and line."""
    found = (comment for path, text in sources.items() for comment in _of_file(path, text))
    return tuple(sorted(found, key=lambda comment: (comment.path, comment.line)))


def _of_file(path: str, text: str) -> Iterator[Comment]:
    if "graphlint" not in text.lower():
        return
    for line, words, first, last in _placed(_NEWLINE.sub("\n", text)):
        for part in _PARTS.split(words):
            comment = _read(part)
            if comment is not None:
                place = {"path": path, "line": line, "first_line": first, "last_line": last}
                yield msgspec.structs.replace(comment, **place)


def _placed(text: str) -> Iterator[tuple[int, str, int, int]]:
    """Yields each comment with its line, and the first and last line of its statement.

    A text that Python can't read to its end gives what stands before the place where it breaks off.
    """
    waiting: list[tuple[int, str]] = []
    first = last = 0
    for token in _tokens(text):
        if token.type == tokenize.COMMENT:
            waiting.append((token.start[0], token.string))
        elif token.type == tokenize.NEWLINE and first:
            yield from ((line, words, first, token.start[0]) for line, words in waiting)
            waiting, first = [], 0
        elif token.type not in _BETWEEN:
            first, last = first or token.start[0], token.end[0]
    yield from ((line, words, first, last if first else 0) for line, words in waiting)


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except _TORN:
        return


def _read(part: str) -> Comment | None:
    """Returns what a part of a comment says, its place left out; None when graphlint isn't addressed."""
    addressed = _ADDRESSED.match(part)
    if addressed is None:
        return None
    rest = addressed["rest"].strip()
    found = _IGNORE.match(rest)
    if found is None:
        return Comment(path="", line=0, problem=_problem(rest)) if _MEANT.match(rest) else None
    entries = tuple(entry.strip() for entry in found["entries"].split(",") if entry.strip())
    if not entries:
        return Comment(path="", line=0, problem="it names no rule in its brackets")
    return Comment(path="", line=0, entries=entries, reason=found["reason"].strip(_SEPARATORS + "\n"))


def _problem(rest: str) -> str:
    word = re.match(r"[\w-]*", rest)
    if word is None or word[0].lower() != "ignore":
        return "it doesn't say `ignore[...]`"
    after = rest[len("ignore") :].lstrip()
    if after.startswith("["):
        return "its bracket is not closed"
    return "the rules do not stand in brackets" if after else "it names no rule"
