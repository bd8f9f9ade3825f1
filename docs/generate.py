"""Makes the pages in docs/rules of the rule files, their examples and docs/symptoms.toml.

    python docs/generate.py            writes every page, with what each example prints today
    python docs/generate.py GL101 GL2  the same, but runs only the examples of these rules

A page is the rule file's docstring, then its examples; under each bad one stands the report on it, without
its summary. Times and counts of garbage differ from run to run: a report that differs by nothing else is left
as it is.
"""

import contextlib
import gc
import io
import re
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "rules"
SYMPTOMS = ROOT / "docs" / "symptoms.toml"
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402
import torch  # noqa: E402

from graphlint.lint.discovery import RuleFile, rule_files  # noqa: E402
from graphlint.lint.intent import HEADING, how_to_declare  # noqa: E402
from graphlint.lint.rule import Example, Rule  # noqa: E402
from graphlint.lint.runner import judge  # noqa: E402
from graphlint.lint.selection import Selection, matching  # noqa: E402
from graphlint.report.text import render  # noqa: E402
from graphlint.testing import run_example  # noqa: E402

OUTPUT = re.compile(
    r"^<!-- output of (?P<kind>bad|good) example (?P<number>\d+) -->\n```text\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_VARYING = re.compile(r"\d+(?:\.\d+)? (?:ns|us|ms|s|objects?)\b|\d+(?:\.\d+)? ?%")
_SEVERITIES = {
    "error": "it crashes or trains the wrong thing",
    "warning": "it wastes much, or is hardly meant",
    "info": "a hint, shown with `--show-info`",
}


class Symptom(NamedTuple):
    """What torch says, or what people see, and the rules that may tell why."""

    words: str
    group: str
    rules: tuple[str, ...]
    note: str

    @property
    def by_torch(self) -> bool:
        """Whether the words are torch's own."""
        return not self.group


def symptoms() -> list[Symptom]:
    """Returns the table, in its order."""
    rows = tomllib.loads(SYMPTOMS.read_text(encoding="utf-8"))["symptom"]
    return [
        Symptom(
            words=row["torch"] if "torch" in row else row["seen"],
            group="" if "torch" in row else row["group"],
            rules=tuple(row["rules"]),
            note=row["note"],
        )
        for row in rows
    ]


_EXAMPLES_REPORTED = (
    "The tests run each of these scripts, and this is what graphlint prints today. A marker `# <-` stands "
    "behind the lines that must be reported."
)
_EXAMPLES_SILENT = "These look alike and are right: no rule may report anything in them."
_INDEX = (
    "Each rule has a page of its own: what it does, why it matters, what to write instead, scripts that it "
    "reports with the report on them, and scripts that look alike and are right. `graphlint explain CODE` "
    "prints the first part of a page."
)
_INDEX_LINKS = (
    "You have an error message or a symptom? See [Symptoms](symptoms.md). It is meant like that? See "
    "[Suppressing](../guide/suppressing.md)."
)
_SYMPTOMS = (
    "What torch says or what you see, and the rules that tell why. `graphlint run train.py` checks all of "
    "them; [Rules](README.md) lists them."
)


# --- what an example prints ------------------------------------------------------------------------------


def output_of(example: Example) -> str:
    """Returns what `graphlint run --show-info example.py` prints, its summary left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "example.py"
        path.write_text(example.code, encoding="utf-8")
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            gc.collect()  # garbage of the example before is not this one's
            trace, _ = run_example(example, path)
    header = msgspec.structs.replace(trace.header, directory=str(path.parent))
    trace = msgspec.structs.replace(trace, header=header)
    printed = io.StringIO()
    render(judge(trace, Selection()), trace, printed, summary=False, show_info=True)
    return printed.getvalue()


def outputs_of(rule: Rule) -> dict[int, str]:
    """Returns what each bad example of a rule prints, by its number from 1."""
    return {number: output_of(example) for number, example in enumerate(rule.bad, start=1)}


def outputs_in(page: str) -> dict[int, str]:
    """Returns the outputs that a page shows, by the example's number."""
    return {int(found["number"]): found["text"] for found in OUTPUT.finditer(page)}


def masked(text: str) -> str:
    """Returns an output without what differs from run to run, and how its lines were broken for that."""
    return " ".join(_VARYING.sub("#", text).split())


# --- pages -----------------------------------------------------------------------------------------------


def name_of(rule: Rule) -> str:
    """Returns the name of a rule's page."""
    return f"{rule.code}.md"


def page(file: RuleFile, outputs: Mapping[int, str], table: Sequence[Symptom]) -> str:
    """Returns the page of a rule."""
    rule = file.rule
    first, _, rest = file.page.partition("\n")
    source = file.path.relative_to(ROOT).as_posix()
    means = f"**{rule.severity.capitalize()}**: {_SEVERITIES[rule.severity]}. Since {rule.since}."
    links = f"Source: [{file.path.name}](../../{source}). [All rules](README.md), [symptoms](symptoms.md)."
    parts = [
        f"<!-- Made by docs/generate.py of {source}; edit that file instead. -->",
        f"# {rule.code} {rule.name}",
        first.strip(),
        f"{means} {links}",
        _fenced(rest.strip("\n")),
        f"## {HEADING}",
        _fenced(how_to_declare(rule)),
        "See [Suppressing](../guide/suppressing.md).",
        *_symptoms_of(rule, table),
        "## Reported",
        _EXAMPLES_REPORTED,
        *_reported(rule, outputs),
        "## Not reported",
        _EXAMPLES_SILENT,
        *(part for example in rule.good for part in _example(example)),
    ]
    return "\n\n".join(parts) + "\n"


def _symptoms_of(rule: Rule, table: Sequence[Symptom]) -> Iterator[str]:
    found = [one for one in table if rule.code in one.rules]
    if found:
        yield "## Symptoms"
        yield "\n".join(f"- {'torch says: ' if one.by_torch else ''}{_words(one)}" for one in found)


def _words(symptom: Symptom) -> str:
    return f"`{symptom.words.replace('`', '')}`" if symptom.by_torch else symptom.words


def _reported(rule: Rule, outputs: Mapping[int, str]) -> Iterator[str]:
    for number, example in enumerate(rule.bad, start=1):
        yield from _example(example)
        text = outputs.get(number, "")
        yield f"<!-- output of bad example {number} -->\n```text\n{text}```"


def _example(example: Example) -> Iterator[str]:
    yield f"### {example.title[0].upper()}{example.title[1:]}"
    notes = []
    if example.simulate:
        notes.append(f"Run with `--simulate {','.join(example.simulate)}`.")
    if example.raises is not None:
        notes.append(f"It ends in an exception that says `{example.raises}`.")
    if notes:
        yield " ".join(notes)
    yield f"```python\n{example.code.rstrip()}\n```"


def _fenced(text: str) -> str:
    """Returns a rule's page with each block of indented code between fences, where it is whole Python."""
    lines: list[str] = []
    block: list[str] = []
    for line in [*text.split("\n"), "end"]:
        if line.startswith("    ") or (block and not line):
            block.append(line)
            continue
        if block:
            lines += _block(block)
            block = []
        lines.append(line)
    return "\n".join(lines[:-1])


def _block(block: list[str]) -> list[str]:
    code = "\n".join(line[4:] for line in block).rstrip("\n")
    blanks = [""] * (len(block) - len("\n".join(block).rstrip("\n").split("\n")))
    try:
        compile(code, "page", "exec")
    except SyntaxError:
        return block
    return ["```python", *code.split("\n"), "```", *blanks]


def index(files: Sequence[RuleFile]) -> str:
    """Returns the page that lists the rules."""
    rows = ["| code | name | severity | what it proves |", "|---|---|---|---|"]
    for file in files:
        rule = file.rule
        summary = file.page.splitlines()[0].strip()
        rows.append(f"| [{rule.code}]({name_of(rule)}) | {rule.name} | {rule.severity} | {summary} |")
    parts = [
        "<!-- Made by docs/generate.py of the rule files; edit those instead. -->",
        "# Rules",
        _INDEX,
        _INDEX_LINKS,
        "\n".join(rows),
        "Severities: " + "; ".join(f"**{word}**, {means}" for word, means in _SEVERITIES.items()) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def symptom_page(files: Sequence[RuleFile], table: Sequence[Symptom]) -> str:
    """Returns the page that leads from symptoms to rules."""
    names = {file.rule.code: file.rule.name for file in files}
    parts = [
        "<!-- Made by docs/generate.py of docs/symptoms.toml; edit that file instead. -->",
        "# Symptoms",
        _SYMPTOMS,
        "## torch says",
        _table([one for one in table if one.by_torch], names, "message"),
    ]
    for group in dict.fromkeys(one.group for one in table if one.group):
        parts += [f"## {group}", _table([one for one in table if one.group == group], names, "what you see")]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Symptom], names: Mapping[str, str], heading: str) -> str:
    lines = [f"| {heading} | rules | what they name |", "|---|---|---|"]
    for one in rows:
        links = ", ".join(f"[{code}]({code}.md) {names[code]}" for code in one.rules if code in names)
        lines.append(f"| {_words(one)} | {links} | {one.note} |")
    return "\n".join(lines)


def pages(outputs: Mapping[str, Mapping[int, str]]) -> dict[str, str]:
    """Returns every page by its file's name; `outputs` are those of each rule's bad examples, by its code."""
    files = rule_files()
    table = symptoms()
    made = {name_of(file.rule): page(file, outputs.get(file.rule.code, {}), table) for file in files}
    return {**made, "README.md": index(files), "symptoms.md": symptom_page(files, table)}


def shown() -> dict[str, dict[int, str]]:
    """Returns the outputs that the pages show now, by the code of the rule."""
    found = sorted(PAGES.glob("GL*.md"))
    return {path.stem: outputs_in(path.read_text(encoding="utf-8")) for path in found}


def _today(rule: Rule, before: Mapping[int, str]) -> dict[int, str]:
    """Returns what the examples print, in the words of before where nothing but times differs."""
    return {
        number: before[number] if masked(before.get(number, "")) == masked(text) else text
        for number, text in outputs_of(rule).items()
    }


def write(only: Sequence[str]) -> None:
    """Writes the pages, and removes those of rules that are no more."""
    torch.set_num_threads(1)
    outputs = shown()
    for file in rule_files():
        if not only or any(matching(entry, [file.rule]) for entry in only):
            outputs[file.rule.code] = _today(file.rule, outputs.get(file.rule.code, {}))
    made = pages(outputs)
    PAGES.mkdir(exist_ok=True)
    for path in PAGES.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
