"""`graphlint draw`: draws the backwards of a saved trace, in a process without torch.

May import everything else.
"""

from pathlib import Path

import click

from graphlint.cli import options as shared
from graphlint.cli import outputs, reporting
from graphlint.errors import UsageError
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.lint.verdict import OK
from graphlint.record.codec import load


@click.command(context_settings=dict(shared.CONTEXT), short_help="Draw a saved trace; needs no torch.")
@shared.graph_options(required=True)
@click.argument("trace", type=click.Path(path_type=Path))
def draw(*, trace: Path, graphs: Path, graph_style: str) -> int:
    """Draws each distinct backward of the saved TRACE as an SVG, and prints the files."""
    record = load(trace)
    outputs.check_directory(graphs)
    report = judge(record, Selection())
    drawn = reporting.draw_graphs(record, report, graphs, reporting.style(graph_style))
    if not drawn:
        raise UsageError(f"{trace} holds no backward: there is nothing to draw")
    for path in drawn:
        click.echo(path)
    return OK
