"""`graphlint run`: runs a script under capture and reports when it has ended.

May import everything; torch is imported by the script, not here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack, cast

import click
import msgspec

from graphlint.capture.options import CaptureOptions
from graphlint.capture.runner import Run, Runner
from graphlint.capture.runner_program import ModuleTarget, ScriptTarget, Target
from graphlint.cli import options as shared
from graphlint.cli import outputs, reporting
from graphlint.cli.hints import hint_for
from graphlint.cli.settings import Given, Settings, settle
from graphlint.errors import UsageError
from graphlint.lint.verdict import SCRIPT_FAILED
from graphlint.record.header import Level
from graphlint.record.trace import Trace

LEVELS = ("auto", "full", "watch")


class RunCommand(click.Command):
    """A command whose options end at the script, or at `-m MODULE`, as the interpreter's do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses graphlint's own options and leaves every later argument to the script."""
        return super().parse_args(ctx, self._closed(args))

    def _closed(self, args: list[str]) -> list[str]:
        """Returns the arguments with `--` after the value of `-m`, if that comes before any script."""
        valued = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        index = 0
        while index < len(args):
            argument = args[index]
            if argument == "--" or not argument.startswith("-") or argument == "-":
                break
            if argument.startswith("-m"):
                end = index + (2 if argument == "-m" else 1)
                return args if end > len(args) else [*args[:end], "--", *args[end:]]
            index += 2 if argument in valued else 1
        return args


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has been checked: what it reads is there, what it writes to is open.

    The script may change the directory: what is written later is held as absolute paths, and beside them are
    the paths as the user gave them, to be shown.
    """

    capture: CaptureOptions
    report: reporting.ReportOptions
    settings: Settings
    destination: outputs.Destination
    graphs: Path | None
    graphs_shown: Path | None
    trace_shown: Path | None
    graph_style: reporting.Style


@click.command(
    cls=RunCommand,
    context_settings={**shared.CONTEXT, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    short_help="Run a training script and report what is wrong with its graphs.",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Stop after N training steps.")
@click.option(
    "--simulate",
    multiple=True,
    metavar="DEVICE",
    callback=shared.check_devices,
    help="Let the script believe in a device that is not there: cuda, cuda:1; repeatable.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="auto records the first steps in full and watches the rest. Default: auto.",
)
@shared.report_options()
@shared.graph_options(required=False)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=shared.check_trace_name,
    help="Save the record as FILE.jsonl or FILE.jsonl.gz.",
)
@shared.selection_options()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run(  # noqa: PLR0913 - one argument per option of the command
    *,
    module: str | None,
    steps: int | None,
    simulate: tuple[str, ...],
    level: str | None,
    format_: str,
    output: Path | None,
    no_color: bool,
    quiet: bool,
    graphs: Path | None,
    graph_style: str,
    trace: Path | None,
    command: tuple[str, ...],
    **given: Unpack[Given],
) -> int:
    """Runs SCRIPT, or -m MODULE, exactly as Python would, and reports when it ends.

    Everything after SCRIPT belongs to the script. Its output goes where it always goes; a text report follows
    on stderr. A JSON report goes to stdout after what the script printed there: give --output to keep it
    apart.
    """
    with _with_help():
        target, argv = _target(module, command)
        runner = Runner(target, argv)
    script = [Path(target.name)] if module is None else []
    settings = settle(given, [*(path.absolute().parent for path in script), Path.cwd()])
    kept = [*script, *([given["baseline"]] if given["baseline"] else [])]
    written = [path for path in (output, trace) if path is not None]
    outputs.refuse_overwriting(kept, written)
    outputs.refuse_overwriting([*script, *written], settings.files_written)
    drawings = outputs.check_directory(graphs) if graphs else None  # first: other files may go into it
    config = settings.config
    capture = CaptureOptions(
        level=cast("Level", level or config.level or "auto"),
        steps=steps or config.steps,
        simulate=simulate or config.simulate,
        trace=outputs.check_trace_file(trace) if trace else None,
        script=target.name if module is None else f"-m {target.name}",
        argv=argv,
    )
    fallback = sys.stdout if format_ == "json" else sys.stderr
    with outputs.open_output(output, fallback, no_color=no_color) as destination:
        plan = _Plan(
            capture=capture,
            report=reporting.report_options(format_, settings, quiet=quiet),
            settings=settings,
            graphs=drawings,
            graphs_shown=graphs,
            trace_shown=trace,
            graph_style=reporting.style(graph_style),
            destination=destination,
        )
        return _run(runner, plan, outputs.Notes(sys.stderr))


def _target(module: str | None, command: tuple[str, ...]) -> tuple[Target, tuple[str, ...]]:
    if module is not None:
        return ModuleTarget(module), command
    if not command:
        raise UsageError("no script given: graphlint run [OPTIONS] SCRIPT [ARGS]...")
    return ScriptTarget(command[0]), command[1:]


@contextmanager
def _with_help() -> Iterator[None]:
    """Lets what is wrong with the script's name end like any wrong argument, with where to read more."""
    try:
        yield
    except UsageError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


def _run(runner: Runner, plan: _Plan, notes: outputs.Notes) -> int:
    with _with_help():
        ended = runner.run(plan.capture)
    if ended.forked:
        raise SystemExit(1 if ended.exit_code is None else ended.exit_code)
    outputs.flush_stdout()
    if ended.error is not None:
        notes.part()
    return _unrecorded(ended, notes) if ended.trace is None else _report(ended, ended.trace, plan, notes)


def _unrecorded(ended: Run, notes: outputs.Notes) -> int:
    """Returns the exit code of a run that left no record, where it is the script's failure.

    Raises:
        UsageError: the script didn't fail.
    """
    why = f"nothing was recorded: {ended.unrecorded}"
    if ended.how not in {"error", "terminated"} and not ended.exit_code:
        raise UsageError(why)
    notes.write(why)
    return SCRIPT_FAILED


def _report(ended: Run, trace: Trace, plan: _Plan, notes: outputs.Notes) -> int:
    """Writes everything that was asked for; the report first, so that a failing drawing can't lose it."""
    report, said = plan.settings.judge(trace)
    if (hint := hint_for(ended.error, plan.capture.simulate)) is not None:
        notes.write(hint)
    after = b"" if plan.destination.stream is not notes.stream else notes.parting().encode()
    code = reporting.write_report(report, trace, plan.report, plan.destination, after=after)
    if said is not None:
        notes.write(said, quiet=plan.report.quiet)
    if plan.graphs is not None:
        count = len(reporting.draw_graphs(trace, report, plan.graphs, plan.graph_style))
        notes.write(
            f"{count} graph{'s' * (count != 1)} drawn in {plan.graphs_shown}", quiet=plan.report.quiet
        )
    if plan.trace_shown is not None:
        notes.write(f"trace saved in {plan.trace_shown}", quiet=plan.report.quiet)
    if plan.destination.name is not None:
        notes.write(f"report written to {plan.destination.name}", quiet=plan.report.quiet)
    return code
