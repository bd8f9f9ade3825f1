"""The reference beside the published correction: half the forwards, less than half the bytes, no findings."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from graphlint.record.events import Backward
from graphlint.reference.data import CaptionedDigits
from graphlint.reference.embedding import HashingEmbedding

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS = 3
BATCH = 16
SIZE = 32


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("reference_against_published")


@pytest.fixture(scope="module")
def dataset() -> CaptionedDigits:
    return CaptionedDigits(HashingEmbedding(SIZE))


@pytest.fixture(scope="module")
def traces(benchmark, dataset) -> dict:
    full = benchmark.batches(dataset, BATCH)[:STEPS]
    makers = {
        "published": lambda: benchmark.published("cuda", SIZE, BATCH).step,
        "reference": lambda: benchmark.reference("cuda", SIZE).step,
    }
    return {name: benchmark.recorded(make, full) for name, make in makers.items()}


def test_a_step_of_the_reference_costs_less(benchmark, traces):
    ours, theirs = (benchmark.cost(traces[name], STEPS) for name in ("reference", "published"))
    assert (ours.generator_forwards, theirs.generator_forwards) == (1, 2)
    assert (ours.embedding_moves, theirs.embedding_moves) == (1, 4)
    assert ours.walked_nodes < 0.7 * theirs.walked_nodes
    assert (ours.moves, theirs.moves) == (2, 9)
    assert ours.moved_bytes + ours.returned_bytes < 0.5 * (theirs.moved_bytes + theirs.returned_bytes)


def test_the_bytes_are_those_of_the_tensors(benchmark, traces):
    image, vector, noise = 64 * 4 * BATCH, SIZE * 4 * BATCH, benchmark.NOISE_SIZE * 4 * BATCH
    loss = 4
    ours, theirs = (benchmark.cost(traces[name], STEPS) for name in ("reference", "published"))
    assert (ours.moved_bytes, ours.returned_bytes) == (vector + image, image)
    assert theirs.moved_bytes == 4 * vector + 2 * noise + 2 * image + loss
    assert theirs.returned_bytes == 2 * image + loss


def test_graphlint_says_what_the_published_step_wastes_and_nothing_of_the_reference(benchmark, traces):
    assert {"GL305", "GL401", "GL403"} <= set(benchmark.findings(traces["published"]))
    assert not benchmark.findings(traces["reference"])


def test_only_the_published_discriminator_loss_reaches_the_generator(benchmark, traces):
    for name, reaches in (("published", True), ("reference", False)):
        trace = traces[name]
        generator = {
            row.tensor for row in trace.parameters if "DigitGenerator" in root_type(trace, row.module)
        }
        first = next(event for event in trace.events if isinstance(event, Backward))
        assert bool(generator & set(first.reached)) is reaches


def root_type(trace, module) -> str:
    return trace.modules[trace.modules[module].root].type


def test_a_short_batch_breaks_the_published_step_alone(benchmark, dataset):
    text, images = benchmark.batches(dataset, BATCH)[0]
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        benchmark.published("cpu", SIZE, BATCH).step(text[:5], images[:5])
    benchmark.reference("cpu", SIZE).step(text[:5], images[:5])


def test_both_learn_from_the_same_work(benchmark, dataset):
    """The work is the same: equal networks, and each is changed by a step."""
    text, images = benchmark.batches(dataset, BATCH)[0]
    for trainer in (benchmark.published("cpu", SIZE, BATCH), benchmark.reference("cpu", SIZE)):
        untouched = benchmark.networks(SIZE)
        trainer.step(text, images)
        for network, before in zip((trainer.generator, trainer.discriminator), untouched, strict=True):
            for now, then in zip(network.parameters(), before.parameters(), strict=True):
                assert now.shape == then.shape
                assert not torch.equal(now, then)


def test_ratios_are_to_the_first_step(benchmark, dataset):
    given = benchmark.batches(dataset, BATCH)[:2]
    found = benchmark.ratios({"a": lambda *_: None, "b": lambda *_: sum(range(20_000))}, given, rounds=3)
    assert list(found) == ["b"]
    assert found["b"] > 1
