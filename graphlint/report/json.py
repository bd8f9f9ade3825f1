"""The report as JSON, version 1, and its schema; may import `lint`, `analysis`, `record` and `report`.

The types below are the format: the schema that is shipped beside this file is generated from them, and a
test holds the two together. Read `version` before anything else; it changes when a field does.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from graphlint.analysis.sources import Sources
from graphlint.lint.finding import Finding
from graphlint.lint.places import Places
from graphlint.lint.rule import Report, RuleOutcome
from graphlint.lint.suppressed import BaselineUse, Suppressed
from graphlint.record.codec import dump
from graphlint.record.trace import Trace
from graphlint.report.run import Run, summarize
from graphlint.version import __version__

SCHEMA_PATH = Path(__file__).with_name("schema-v1.json")
"""The shipped schema."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What made the report: graphlint's version, and the torch that the script ran with."""

    name: Literal["graphlint"]
    version: str
    torch: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report.

    Paths are relative to the run's working directory where they lie below it, with `/`. `rules` holds every
    rule that there is; only one whose outcome is `clean` was checked and found nothing. `findings` holds
    those of every severity; `suppressed` those that were declared as meant, which are in no other list.
    `baseline` is null where none was given.
    """

    version: Literal[1]
    tool: Tool
    run: Run
    findings: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...]
    baseline: BaselineUse | None
    rules: tuple[RuleOutcome, ...]


def document(report: Report, trace: Trace) -> Document:
    """Returns the report as a value, with the paths as they are shown."""
    places = Places(trace, Sources(trace))
    run = summarize(trace)
    if run.error is not None and run.error.path is not None:
        error = msgspec.structs.replace(run.error, path=places.shown(run.error.path))
        run = msgspec.structs.replace(run, error=error)
    return Document(
        version=1,
        tool=Tool(name="graphlint", version=__version__, torch=trace.header.torch),
        run=msgspec.structs.replace(run, script=places.shown(run.script)),
        findings=tuple(_shown(finding, places) for finding in report.findings),
        suppressed=tuple(_shown_aside(one, places) for one in report.suppressed),
        baseline=report.baseline,
        rules=report.outcomes,
    )


def to_json(report: Report, trace: Trace) -> bytes:
    """Returns the report as indented JSON, UTF-8, with a newline at the end."""
    return msgspec.json.format(dump(document(report, trace)), indent=2) + b"\n"


def schema() -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a report, generated from the types."""
    generated = msgspec.json.schema(Document)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "graphlint report, version 1",
        **generated,
    }


def schema_text() -> bytes:
    """Returns the schema as it is shipped."""
    return msgspec.json.format(dump(schema()), indent=2) + b"\n"


def _shown_aside(one: Suppressed, places: Places) -> Suppressed:
    path = None if one.path is None else places.shown(one.path)
    return msgspec.structs.replace(one, finding=_shown(one.finding, places), path=path)


def _shown(finding: Finding, places: Places) -> Finding:
    labels = tuple(msgspec.structs.replace(label, path=places.shown(label.path)) for label in finding.labels)
    return msgspec.structs.replace(finding, path=places.shown(finding.path), labels=labels)
