"""The `graphlint` command: its sub-commands, and how every mistake becomes one line and exit code 2.

May import `cli`, `errors` and click. Torch, rich, networkx and graphviz are imported by the sub-commands that
need them, when they run.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

import click

from graphlint.cli.check import check
from graphlint.cli.draw import draw
from graphlint.cli.explain import explain
from graphlint.cli.options import CONTEXT
from graphlint.cli.outputs import flush_stdout, reopened
from graphlint.cli.reference import reference
from graphlint.cli.rules import rules
from graphlint.cli.run import run
from graphlint.errors import GraphlintError
from graphlint.version import __version__

FAULT = 2
"""Exit code of wrong usage and of graphlint's own failure."""

UNREAD = 141
"""Exit code when the reader of the output has gone, as a shell gives it for a program that SIGPIPE ended."""


_HELP = """Audits PyTorch training loops.

\b
Names the backward that freed a graph, the detach that cut a loss,
the value that travels GPU, CPU, GPU. Start with:
    graphlint run train.py
    graphlint run --simulate cuda train.py     (a machine without a GPU)

\b
Exit codes:
    0  nothing found at or above the level of --fail-on
    1  findings
    2  wrong usage, nothing to check, or a failure of graphlint's own
    3  the script failed and no finding explains that failure, or SIGTERM ended it and nothing was found
"""


@click.group(context_settings=dict(CONTEXT), no_args_is_help=False, help=_HELP)
@click.version_option(__version__, "--version", message="graphlint %(version)s")
def cli() -> None:
    """Runs a sub-command."""


for _command in (run, check, draw, rules, explain, reference):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        arguments: what follows the program's name; None: those of this process.
    """
    guard = _Guard(sys.stderr)
    with guard:
        guard.code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
    flush_stdout()
    return guard.code


def _invoke(arguments: list[str]) -> int:
    try:
        with cli.make_context("graphlint", arguments) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return code if isinstance(code, int) else 0


class _Guard:
    """Turns what ends a command early into a message and an exit code.

    A mistake of the user's is one line; a reader that has gone (`| head`) is none. Anything else is a fault
    of graphlint's own: its traceback, and the request to report it. `SystemExit` passes.
    """

    def __init__(self, stderr: TextIO | None) -> None:
        self._stderr = stderr
        self.code = FAULT

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, SystemExit | GeneratorExit):
            return False
        if isinstance(error, BrokenPipeError):
            self.code = UNREAD
            return True
        self.code = FAULT
        text = _one_line(error)
        if text is not None:
            self._write(f"graphlint: error: {text}\n")
        else:
            self._write("".join(traceback.format_exception(error)))
            self._write(
                "graphlint: error: this is a fault of graphlint's own; please report it with the text "
                "above and the trace file (run again with --trace FILE.jsonl.gz to get one)\n"
            )
        return True

    def _write(self, text: str) -> None:
        if self._stderr is None:
            return
        try:
            stream = reopened(self._stderr)
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            # Nobody is left to read it; the exit code still says so.
            return


def _where_to_read(error: click.ClickException) -> str:
    if not isinstance(error, click.UsageError):
        return ""
    command = error.ctx.command_path if error.ctx is not None else "graphlint"
    return f" (see {command} --help)"


def _one_line(error: BaseException) -> str | None:
    """Returns the line for a user's mistake; None for anything else."""
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split()) + _where_to_read(error)
    if isinstance(error, GraphlintError):
        return " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        return "interrupted before the report was complete"
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EIO}:
        return f"can't write the output: {os.strerror(error.errno)}"
    return None
