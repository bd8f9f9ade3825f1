"""One cause is one finding; its fingerprint survives edits elsewhere and tells causes apart."""

import pytest

from graphlint.analysis.sources import Sources
from graphlint.lint.finding import Label, Occurrence
from graphlint.lint.folding import fold
from graphlint.lint.places import Places

PATH = "/home/me/train.py"
SOURCE = """def train(model):
    for step in range(3):
        loss = model(step)
        loss.backward()
        loss.backward()
"""


def sighting(*lines, message="m.", **fields):
    labels = tuple(Label(path=PATH, line=line, text=f"label {line}") for line in lines)
    return Occurrence(message=message, labels=labels, fix="f.", **fields)


@pytest.fixture
def folded(make_trace, make_rule):
    def run(occurrences, *, source=SOURCE, directory="/home/me", path=PATH, sites=(), **rule):
        trace = make_trace(directory=directory, sources={path: source}, sites=sites)
        return fold(make_rule(**rule), occurrences, Places(trace, Sources(trace)))

    return run


def test_counts_steps_and_runs_of_steps(folded):
    seen = [sighting(4, step=2), sighting(4, step=3, last_step=12), sighting(4, step=20)]
    (finding,) = folded(seen)
    assert (finding.count, finding.first_step, finding.last_step) == (12, 2, 20)


def test_counts_what_lies_outside_of_steps(folded):
    (finding,) = folded([sighting(4), sighting(4)])
    assert (finding.count, finding.first_step, finding.last_step) == (2, None, None)
    (finding,) = folded([sighting(4), sighting(4, step=1)])
    assert (finding.count, finding.first_step, finding.last_step) == (2, 1, 1)


def test_same_lines_are_one_cause_whatever_the_words(folded):
    assert len(folded([sighting(4, 3, message="a."), sighting(4, 3, message="b.")])) == 1
    assert len(folded([sighting(4, 3), sighting(4, 5)])) == 2


def test_a_cause_given_by_the_rule_decides(folded):
    one = folded([sighting(4, cause=("gen",)), sighting(5, cause=("gen",))])
    assert [(finding.line, finding.count) for finding in one] == [(4, 2)]
    two = folded([sighting(4, cause=("gen",)), sighting(4, cause=("disc",))])
    assert len({finding.fingerprint for finding in two}) == 2


def test_a_cause_is_not_mistaken_for_lines(folded):
    assert len(folded([sighting(4), sighting(4, cause=(PATH, 4))])) == 2


def test_words_come_from_the_first_of_the_most_severe(folded):
    seen = [
        sighting(4, message="a.", step=0),
        sighting(4, message="b.", step=1, severity="error"),
        sighting(4, message="c.", step=2, severity="error"),
    ]
    (finding,) = folded(seen, severity="warning")
    assert (finding.severity, finding.message, finding.count) == ("error", "b.", 3)


def test_equal_labels_are_kept_once(folded):
    label = Label(path=PATH, line=4, text="same")
    other = Label(path=PATH, line=4, text="other")
    (finding,) = folded([Occurrence(message="m.", labels=(label, label, other), fix="f.")])
    assert finding.labels == (label, other)


def test_fingerprint_survives_inserted_lines_and_new_formatting(folded):
    (before,) = folded([sighting(3)])
    (shifted,) = folded([sighting(5)], source="# one\n\n" + SOURCE)
    (spaced,) = folded([sighting(3)], source=SOURCE.replace("model(step)", "model( step )  # why"))
    assert before.fingerprint == shifted.fingerprint == spaced.fingerprint


def test_fingerprint_survives_inserted_lines_for_all_labels(folded):
    (before,) = folded([sighting(4, 3)])
    (after,) = folded([sighting(5, 4)], source="import os\n" + SOURCE)
    assert before.fingerprint == after.fingerprint


def test_fingerprint_survives_another_directory(folded):
    (before,) = folded([sighting(3)])
    moved = Occurrence(message="m.", labels=(Label(path="/srv/x/train.py", line=3, text="l"),), fix="f.")
    (after,) = folded([moved], directory="/srv/x", path="/srv/x/train.py")
    assert before.fingerprint == after.fingerprint


def test_fingerprint_tells_apart_code_statement_function_and_file(folded):
    other = Occurrence(message="m.", labels=(Label(path="/home/me/b.py", line=3, text="l"),), fix="f.")
    prints = {
        folded([sighting(3)])[0].fingerprint,
        folded([sighting(3)], code="GL901")[0].fingerprint,
        folded([sighting(4)])[0].fingerprint,
        folded([sighting(3)], source=SOURCE.replace("model(step)", "model(0)"))[0].fingerprint,
        folded([sighting(3)], sites=[(PATH, 3, "train")])[0].fingerprint,
        folded([other])[0].fingerprint,
    }
    assert len(prints) == 6


def test_fingerprint_survives_renamed_directories_and_another_working_directory(folded):
    def fault(path):
        labels = (Label(path=path, line=3, text="l"),)
        return Occurrence(message="m.", labels=labels, fix="f.", cause=(path, 3, "gen"))

    (before,) = folded([fault(PATH)])
    renamed = "/home/me/src/new/train.py"
    (after,) = folded([fault(renamed)], path=renamed)
    (elsewhere,) = folded([fault(PATH)], directory="/home")
    assert before.fingerprint == after.fingerprint == elsewhere.fingerprint


def test_equal_statements_get_an_ordinal(folded):
    first, second = folded([sighting(4), sighting(5)])
    assert first.fingerprint != second.fingerprint
    again, _ = folded([sighting(4), sighting(5)])
    assert again.fingerprint == first.fingerprint
