"""graphlint agrees with the model of autograd on what is wrong with a program, and says nothing else."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from programs import language as lang
from programs.comparing import disagreements, told
from programs.drawing import programs
from programs.faults import Told

NETWORKS = ("a", "b")
OPTIMIZERS = (("a_optimizer", ("a",)), ("b_optimizer", ("b",)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs())
def test_graphlint_agrees_with_the_model(program: lang.Program, tmp_path: Path) -> None:
    said = disagreements(program, told(program, tmp_path / "program.py"))
    assert not said, "\n".join([*said, program.source])


# The comparison itself must be able to fail, in both directions.

UPDATE = (
    lang.Zero("a_optimizer"),
    lang.Forward("h0", "a", lang.BATCH),
    lang.Loss("loss0", "h0"),
    lang.Backward("loss0"),
    lang.Step("a_optimizer"),
)


def program(*body: lang.Statement) -> lang.Program:
    return lang.Program(NETWORKS, OPTIMIZERS, body)


REUSED = program(*UPDATE[:4], lang.Backward("loss0"))


def test_a_right_program_may_have_no_finding() -> None:
    right = program(*UPDATE)
    assert disagreements(right, ()) == []
    line = right.line(4)
    for code in ("GL101", "GL102", "GL201", "GL301", "GL302", "GL303", "GL404", "GL601"):
        assert disagreements(right, (Told(code, line, frozenset(range(1, line + 1))),))


def test_an_error_must_be_told_at_its_line() -> None:
    first, second = REUSED.line(3), REUSED.line(4)
    assert disagreements(REUSED, ()) == [f"not told: line {second} freed ['GL101']"]
    assert disagreements(REUSED, (Told("GL101", second, frozenset((first, second))),)) == []
    assert disagreements(REUSED, (Told("GL101", first, frozenset((first, second))),))
    assert disagreements(REUSED, (Told("GL105", second, frozenset((first, second))),))


@pytest.mark.parametrize(
    ("body", "codes", "position"),
    [
        (UPDATE[1:], {"GL301", "GL304"}, 3),
        ((*UPDATE[1:4], UPDATE[0], UPDATE[4]), {"GL201", "GL302", "GL303"}, 4),
        ((*UPDATE[:3], UPDATE[4]), {"GL201", "GL302", "GL303"}, 3),
        (
            (
                *UPDATE[:3],
                lang.Backward("loss0", retain=True),
                lang.Join("loss1", "loss0", "loss0"),
                lang.Backward("loss1"),
                UPDATE[4],
            ),
            {"GL102"},
            5,
        ),
    ],
    ids=["no zero", "zero before step", "no backward", "counted twice"],
)
def test_a_slip_must_be_told(body, codes, position) -> None:
    wrong = program(*body)
    (said,) = disagreements(wrong, ())
    assert said.startswith(f"not told: line {wrong.line(position)} ")
    assert said.endswith(f"{sorted(codes)}")
