"""What the documents say is held against the code: outputs, options, fields, names, links and examples.

A block after `<!-- run, exit N: COMMAND -->` is what the command prints today, standard output first; a line
`...` stands for lines left out. A block after `<!-- runnable: NAME -->` runs; one after `<!-- file: NAME -->`
is saved under that name for the commands of the same document. `python tests/test_docs.py` writes today's
output into the documents, and today's drawings into `docs/images`. A block after `<!-- measured: COMMAND -->`
holds figures of one machine and takes minutes: it is written with `--measured` only.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import graphlint
from graphlint.cli.main import cli
from graphlint.lint.config import KEYS
from graphlint.lint.discovery import rule_files
from graphlint.report.drawing.palette import MARKS
from graphlint.report.json import schema

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
INTERNALS = ROOT / "docs" / "internals"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
IMAGES = ROOT / "docs" / "images"


PICTURES = {
    "split_gan_reuse.svg": ("fixtures/split_gan_reuse.py", "step0-2-generator_loss.", "GL101"),
    "split_gan_retain.svg": ("fixtures/split_gan_retain.py", "step0-2-generator_loss.", "GL105"),
    "split_gan_published_fix.svg": (
        "fixtures/split_gan_published_fix.py",
        "step0-1-discriminator_loss.",
        "GL305",
    ),
    "reference_discriminator.svg": ("fixtures/clean/reference_trainer.py", "step0-1-loss.", None),
    "reference_generator.svg": ("fixtures/clean/reference_trainer.py", "step0-2-loss.", None),
}
"""The images of the documents: the script, which of its drawings, and the rule whose finding stands in it."""

_BLOCK = re.compile(
    r"(?:<!-- (?P<kind>run|runnable|file|measured)(?:, exit (?P<code>\d))?: (?P<what>[^>]+) -->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_REFERENCE = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")
_TIME = re.compile(r"\d+(?:\.\d+)? (?:ms|s)\b")


class Block(NamedTuple):
    """A fenced block, what its marker says of it, and where its text lies in the document."""

    document: Path
    kind: str | None
    code: int
    what: str
    language: str
    text: str
    span: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT).as_posix()}:{self.what}"


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        code = int(match["code"] or 0)
        what = match["what"] or str(text.count("\n", 0, match.start()) + 1)
        fields = (document, match["kind"], code, what, match["language"], match["text"], match.span("text"))
        found.append(Block(*fields))
    return found


def of_kind(*kinds: str) -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document) if block.kind in kinds]


def execute(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=os.environ | settings,
        timeout=600,
    )


def output_of(block: Block, directory: Path) -> str:
    """Returns what the command prints, run in the repository or beside the saved files."""
    program, *arguments = block.what.split()
    for saved in blocks(block.document):
        if saved.kind in {"file", "runnable"}:
            (directory / saved.what).write_text(saved.text, encoding="utf-8")
    call = ["-m", "graphlint", *arguments] if program == "graphlint" else arguments
    done = execute(call, ROOT if re.search(r"(?:fixtures|benchmarks)/", block.what) else directory)
    assert done.returncode == block.code, done.stdout + done.stderr
    return done.stdout + done.stderr


def masked(text: str) -> list[str]:
    return _TIME.sub("# ms", text).splitlines()


def segments(lines: list[str]) -> list[list[str]]:
    """Returns the runs of lines between the lines `...`, without the blank lines around them."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line == "...":
            found.append([])
        else:
            found[-1].append(line)
    return ["\n".join(part).strip("\n").split("\n") for part in found if any(part)]


def unmatched(shown: str, printed: str) -> list[str]:
    """Returns the first part of a shown block that isn't in the printed lines where it should be."""
    wanted, lines = segments(masked(shown)), masked(printed)
    if "..." not in shown.splitlines():
        return [] if wanted == segments(lines) else lines
    start = 0
    for part in wanted:
        places = range(start, len(lines) - len(part) + 1)
        place = next((at for at in places if lines[at : at + len(part)] == part), None)
        if place is None:
            return part
        start = place + len(part)
    return []


@pytest.mark.parametrize("block", of_kind("run"), ids=str)
def test_shown_output_is_what_the_command_prints(block, tmp_path):
    printed = output_of(block, tmp_path)
    assert unmatched(block.text, printed) == [], f"write today's output with python {Path(__file__).name}"


@pytest.mark.parametrize("block", of_kind("runnable"), ids=str)
def test_runnable_examples_run(block, tmp_path):
    (tmp_path / block.what).write_text(block.text, encoding="utf-8")
    done = execute([block.what], tmp_path)
    assert done.returncode == block.code, done.stderr


def test_shown_outputs_can_fail():
    assert unmatched("a\n...\nc\nd\n", "x\na\nb\nc\nd\n") == []
    assert unmatched("takes 3.1 ms\n", "takes 77 ms\n") == []
    assert unmatched("a\n...\nd\n", "a\nb\n") == ["d"]
    assert unmatched("c\n...\na\n", "a\nc\n") == ["a"]
    assert unmatched("a\n", "a\nb\n") == ["a", "b"]


@pytest.mark.parametrize("block", of_kind("measured"), ids=str)
def test_measured_figures_are_those_of_a_program_that_is_there(block):
    program, script, *_ = block.what.split()
    assert program == "python"
    assert (ROOT / script).is_file()


def test_documents_have_examples():
    assert len(of_kind("run")) >= 3
    assert len(of_kind("runnable")) >= 4


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_compile(document):
    for block in blocks(document):
        if block.language == "python":
            compile(block.text, str(block), "exec")


# --- links and names -------------------------------------------------------------------------------------


def slugs(document: Path) -> set[str]:
    """Returns the anchors of a document's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in slugs(target)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document):
    assert list(broken_links(document)) == []


def test_broken_links_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A b\n[x](no.md) [y](page.md#a-b) [z](#c) [w](https://example.org)\n")
    assert list(broken_links(page)) == ["no.md", "#c"]


def unknown_references(text: str) -> Iterator[str]:
    for path, name in _REFERENCE.findall(text):
        file = next((base / path for base in (ROOT / "graphlint", ROOT) if (base / path).is_file()), None)
        if file is None or (
            name and not defines(ast.parse(file.read_text(encoding="utf-8")), name.split("."))
        ):
            yield f"{path}:{name}"


def defines(scope: ast.AST, names: list[str]) -> bool:
    """Returns whether a class, a function or an assigned name of this dotted path is there."""
    for node in ast.iter_child_nodes(scope):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found = {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)}
        if names[0] in found:
            return len(names) == 1 or defines(node, names[1:])
    return False


@pytest.mark.parametrize("document", sorted(INTERNALS.glob("*.md")), ids=lambda path: path.name)
def test_internals_name_what_exists(document):
    text = document.read_text(encoding="utf-8")
    assert len(_REFERENCE.findall(text)) >= 10
    assert list(unknown_references(text)) == []


def test_unknown_references_are_noticed():
    text = "`capture/session.py:Session.nothing`, `capture/none.py`, `capture/options.py:FULL_STEPS`"
    assert list(unknown_references(text)) == ["capture/session.py:Session.nothing", "capture/none.py:"]


# --- tables ----------------------------------------------------------------------------------------------


def section(document: Path, heading: str) -> str:
    """Returns what stands under a heading of the second level."""
    text = document.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}$\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{document.name} has no section {heading!r}"
    return found[1]


def first_cells(text: str) -> list[str]:
    """Returns the code at the start of each table row."""
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def rule_table() -> str:
    rows = ["| code | name | severity | what it proves |", "|---|---|---|---|"]
    for file in rule_files():
        link = f"[{file.rule.code}](docs/rules/{file.rule.code}.md)"
        summary = file.page.splitlines()[0].strip()
        rows.append(f"| {link} | {file.rule.name} | {file.rule.severity} | {summary} |")
    return "\n".join(rows)


def test_readme_lists_the_rules():
    shown = re.search(
        r"<!-- rules -->\n\n(.*?)\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert shown
    assert shown[1] == rule_table()


def options_of(command: click.Command) -> list[str]:
    """Returns the options of a command, and those of the commands below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = [max(param.opts, key=len) for param in command.params if isinstance(param, click.Option)]
    return own + [option for part in below for option in options_of(part)]


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_guide_has_every_option_and_no_other(name):
    text = section(GUIDE / "command-line.md", f"graphlint {name}")
    assert sorted(first_cells(text)) == sorted(options_of(cli.commands[name]))


@pytest.mark.parametrize("kind", sorted(schema()["$defs"]))
def test_guide_has_every_field_of_the_report(kind):
    text = section(GUIDE / "json.md", kind)
    assert first_cells(text) == list(schema()["$defs"][kind]["properties"])


def test_guide_has_every_key_of_the_config():
    assert first_cells(section(GUIDE / "suppressing.md", "The config file")) == list(KEYS)


def test_guide_has_every_argument_of_audit():
    arguments = [name for name in inspect.signature(graphlint.audit).parameters if name != "function"]
    assert first_cells(section(GUIDE / "decorator.md", "Arguments")) == arguments


@pytest.mark.parametrize("document", sorted(GUIDE.glob("*.md")), ids=lambda path: path.name)
def test_guide_has_the_limits_that_the_code_has(document):
    text = document.read_text(encoding="utf-8")
    found = re.findall(r"<!-- limit: ([\w.]+)\.(\w+) -->([\d,]+)", text)
    real = {f"{module}.{name}": getattr(import_module(module), name) for module, name, _ in found}
    wrong = [(name, shown) for module, name, shown in found if f"{real[f'{module}.{name}']:,}" != shown]
    assert text.count("<!-- limit: ") == len(found)
    assert wrong == []


def test_guide_has_the_legend_of_the_drawings():
    text = " ".join((GUIDE / "reading-a-report.md").read_text(encoding="utf-8").split())
    assert [look.words for _, look in MARKS if look.words not in text] == []


# --- the pictures ----------------------------------------------------------------------------------------


def draw(image: str, directory: Path) -> Path:
    script, name, _ = PICTURES[image]
    arguments = ["--simulate", "cuda", "--fail-on", "never", "--graphs", str(directory), script]
    done = execute(["-m", "graphlint", "run", *arguments], ROOT)
    drawn = list(directory.glob(f"{name}backward-L*.svg"))
    assert len(drawn) == 1, done.stderr
    return drawn[0]


def words(drawing: Path) -> list[str]:
    """Returns the title and the lines below it, and the tooltips that speak of a finding."""
    texts = re.findall(r"<(text|title)\b[^>]*>([^<]*)", drawing.read_text(encoding="utf-8"))
    head = [text for kind, text in texts if kind == "text"][:3]
    told = {text for kind, text in texts if kind == "title" and re.search(r"GL\d{3}", text)}
    return head + sorted(line for text in told for line in masked(text))


@pytest.mark.parametrize("image", PICTURES)
def test_picture_is_that_of_todays_run(image, tmp_path):
    shown = words(IMAGES / image)
    assert shown == words(draw(image, tmp_path))
    assert shown[0].endswith("loss.backward()")
    told, code = set(re.findall(r"GL\d{3}", " ".join(shown[3:]))), PICTURES[image][2]
    assert code in told if code else not told


# --- writing today's output ------------------------------------------------------------------------------


def refreshed(shown: str, printed: str) -> str:
    """Returns the shown block with each part replaced by what now stands at the line that it begins with."""
    if "..." not in shown.splitlines():
        return printed.strip("\n") + "\n"
    lines = printed.splitlines()
    start, parts = 0, []
    for part in segments(shown.splitlines()):
        start = next(at for at in range(start, len(lines)) if alike(lines[at], part[0]))
        end = next((at for at in range(start, len(lines)) if not lines[at].strip()), len(lines))
        parts.append("\n".join(lines[start:end]))
        start = end
    before, after = ("...\n" if shown.splitlines()[place] == "..." else "" for place in (0, -1))
    return before + "\n\n...\n\n".join(parts) + "\n" + after


def test_writing_keeps_what_is_left_out():
    assert refreshed("...\n  took 2 steps\n", "x\n  took 3 steps\n") == "...\n  took 3 steps\n"
    assert refreshed("a 1\n\n...\n\nb 1\n...\n", "a 2\n\nc\n\nb 2\n") == "a 2\n\n...\n\nb 2\n...\n"


def alike(line: str, other: str) -> bool:
    return re.sub(r"\d+", "#", line) == re.sub(r"\d+", "#", other)


def refresh(*, measured: bool) -> None:
    kinds = {"run", "measured"} if measured else {"run"}
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in reversed(blocks(document)):
            if block.kind in kinds:
                with tempfile.TemporaryDirectory() as directory:
                    printed = output_of(block, Path(directory))
                text = text[: block.span[0]] + refreshed(block.text, printed) + text[block.span[1] :]
        document.write_text(text, encoding="utf-8")
    readme = ROOT / "README.md"
    rows = f"<!-- rules -->\n\n{rule_table()}\n\n"
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"<!-- rules -->\n\n(?:\|.*?\n\n)?", lambda _: rows, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")
    for image in PICTURES:
        with tempfile.TemporaryDirectory() as directory:
            (IMAGES / image).write_bytes(draw(image, Path(directory)).read_bytes())


if __name__ == "__main__":
    refresh(measured="--measured" in sys.argv)
