"""Watched steps that are equal are counted, and the others are kept up to a limit."""

from graphlint.capture import folding
from graphlint.capture.folding import Segment, StepFolder
from graphlint.record.events import Backward, Cleanup, OptimizerStep, Repeat, StepBoundary, Visit


def visit(backward: int, node: int, *, freed: bool) -> Visit:
    return Visit(0, backward, freed, node)


class Steps:
    """Feeds made-up steps to a folder; each is a backward and an optimizer's step."""

    def __init__(self) -> None:
        self.stored = []
        self.folder = StepFolder(self.stored.extend)
        self.serial = 0

    def next(self) -> int:
        self.serial += 1
        return self.serial

    def add(self, level: str = "watch", graph: int = 0, visits=(), collected: int = 0) -> None:
        boundary = StepBoundary(serial=self.next(), reason="optimizer", after=self.serial - 1, level=level)
        segment = Segment(level, boundary)
        segment.events += [
            Backward(
                serial=self.next(),
                site=1,
                call="Tensor.backward",
                roots=(),
                graph=graph,
                visits=visits,
                end=self.next(),
            ),
            OptimizerStep(serial=self.next(), site=2, optimizer=0, end=self.next()),
            Cleanup(
                serial=self.next(), site=3, call="gc.collect", duration_ns=self.serial, collected=collected
            ),
        ]
        self.folder.add(segment)

    def kinds(self) -> list[str]:
        self.folder.end_run()
        return [type(event).__name__ for event in self.stored]


STORED = ["StepBoundary", "Backward", "OptimizerStep", "Cleanup"]


def test_equal_steps_are_counted() -> None:
    steps = Steps()
    for _ in range(5):
        steps.add()
    assert steps.kinds() == [*STORED, "Repeat"]
    assert isinstance(steps.stored[-1], Repeat)
    assert (steps.stored[-1].count, steps.stored[-1].like) == (4, steps.stored[0].serial)


def test_full_steps_are_all_kept() -> None:
    steps = Steps()
    for _ in range(3):
        steps.add("full")
    assert steps.kinds() == STORED * 3


def test_a_different_step_is_kept_and_the_order_shows() -> None:
    steps = Steps()
    for graph in (0, 0, 1, 1, 0, 0, 0):
        steps.add(graph=graph)
    assert steps.kinds() == [*STORED, "Repeat", *STORED, "Repeat", "Repeat"]
    assert [event.count for event in steps.stored if isinstance(event, Repeat)] == [1, 1, 3]


def test_what_a_cleanup_found_does_not_tell_steps_apart() -> None:
    steps = Steps()
    steps.add(collected=1)
    steps.add(collected=7)
    assert steps.kinds() == [*STORED, "Repeat"]


def test_visits_are_compared_by_their_place_in_the_step() -> None:
    steps = Steps()
    steps.add(visits=(visit(steps.serial + 2, 5, freed=False),))
    steps.add(visits=(visit(steps.serial + 2, 9, freed=False),))
    steps.add(visits=(visit(steps.serial + 2, 9, freed=True),))
    assert steps.kinds() == [*STORED, "Repeat", *STORED]


def test_a_visit_to_an_earlier_step_differs_from_one_to_the_same() -> None:
    steps = Steps()
    steps.add(visits=(visit(steps.serial + 2, 5, freed=False),))
    steps.add(visits=(visit(2, 5, freed=False),))
    assert steps.kinds() == STORED * 2


def test_kinds_past_the_limit_are_only_counted(monkeypatch) -> None:
    monkeypatch.setattr(folding, "MAX_SHAPES", 2)
    steps = Steps()
    for graph in range(5):
        steps.add(graph=graph)
    assert steps.kinds() == STORED * 2
    assert steps.folder.dropped_steps == 3


def test_rows_of_repeats_are_limited(monkeypatch) -> None:
    monkeypatch.setattr(folding, "_MAX_REPEAT_ROWS", 3)
    steps = Steps()
    for index in range(12):
        steps.add(graph=index % 2)
    assert steps.kinds().count("Repeat") == 3
    assert steps.folder.dropped_steps == 7


def test_a_segment_is_split_after_a_serial() -> None:
    segment = Segment("full")
    segment.events += [Cleanup(serial=number, call="gc.collect", duration_ns=0) for number in (1, 2, 5)]
    assert [event.serial for event in segment.split(2)] == [5]
    assert [event.serial for event in segment.events] == [1, 2]
    assert not segment.trained
