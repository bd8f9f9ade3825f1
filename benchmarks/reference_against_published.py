"""Prints what a step of the reference trainer takes beside one of the published correction, on the same work.

    python benchmarks/reference_against_published.py [--rounds N] [--batch-size N]

The counts come from graphlint's own record of three steps, the generator on a simulated `cuda:0`, the
discriminator on the CPU. The times are those of plain steps on the CPU, without graphlint and without a
second device, in interleaved blocks of one process: CPU times of the thread that works. Both train the same
networks with the same optimizers on the same batches; neither keeps a moving average.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import torch
from published_correction import PublishedCorrection
from torch import Tensor
from torch.utils.data import DataLoader

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.events import Backward, ModuleCall, Op, Transfer
from graphlint.record.identity import TensorId
from graphlint.record.trace import Trace
from graphlint.reference.data import CaptionedDigits
from graphlint.reference.models import DIGIT_OPTIONS, NOISE_SIZE, DigitDiscriminator, DigitGenerator
from graphlint.reference.trainer import SplitDeviceGANTrainer

Batch = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], object]

OPTIONS = msgspec.structs.replace(DIGIT_OPTIONS, ema_decay=None)
STEPS = 3
BLOCK_STEPS = 10


class Cost(NamedTuple):
    """What one step took, as the record tells it.

    `moved_bytes` are those of the script's own moves, `returned_bytes` those of the gradients that backward
    takes to where their tensors came from.
    """

    generator_forwards: int
    walked_nodes: int
    moves: int
    embedding_moves: int
    moved_bytes: int
    returned_bytes: int


def networks(embedding_size: int) -> tuple[DigitGenerator, DigitDiscriminator]:
    torch.manual_seed(0)
    return DigitGenerator(NOISE_SIZE, embedding_size), DigitDiscriminator(embedding_size)


def published(
    device: str, embedding_size: int, batch_size: int, *, cleans_up: bool = True
) -> PublishedCorrection:
    return PublishedCorrection(
        *networks(embedding_size),
        device=device,
        noise_size=NOISE_SIZE,
        batch_size=batch_size,
        options=OPTIONS,
        cleans_up=cleans_up,
    )


def reference(device: str, embedding_size: int) -> SplitDeviceGANTrainer:
    return SplitDeviceGANTrainer(
        *networks(embedding_size),
        generator_device=device,
        discriminator_device="cpu",
        noise_size=NOISE_SIZE,
        options=OPTIONS,
    )


def batches(dataset: CaptionedDigits, batch_size: int) -> list[Batch]:
    order = torch.Generator().manual_seed(0)
    return [tuple(batch) for batch in DataLoader(dataset, batch_size, shuffle=True, generator=order)]


def recorded(make: Callable[[], Step], given: list[Batch]) -> Trace:
    """Returns the record of one step for each batch, at full level."""
    session = Session(CaptureOptions(level="full", simulate=("cuda",)))
    with session:
        step = make()
        for text_embeddings, images in given:
            session.mark_step()
            step(text_embeddings, images)
        session.close("finished", 0)
    return session.trace()


def cost(trace: Trace, steps: int) -> Cost:
    """Returns what a step took; each took the same."""
    calls = [event for event in trace.events if isinstance(event, ModuleCall)]
    backwards = [event for event in trace.events if isinstance(event, Backward)]
    moves = [event for event in trace.events if isinstance(event, Transfer) and not event.noop]
    totals = Cost(
        generator_forwards=sum(trace.modules[call.module].type.endswith("DigitGenerator") for call in calls),
        walked_nodes=sum(backward.nodes for backward in backwards),
        moves=len(moves),
        embedding_moves=sum(1 for _ in moves_of_embeddings(trace, moves)),
        moved_bytes=sum(move.bytes for move in moves),
        returned_bytes=sum(returned_bytes(trace, backward) for backward in backwards),
    )
    assert all(total % steps == 0 for total in totals)
    return Cost(*(total // steps for total in totals))


def moves_of_embeddings(trace: Trace, moves: list[Transfer]) -> Iterator[Transfer]:
    """Yields the moves of the tensors with two dimensions that no operation of the step has made."""
    came_from: dict[TensorId, TensorId] = {}
    made = {output for event in trace.events if isinstance(event, Op) for output in event.outputs}
    for move in moves:
        source = came_from.get(move.source.tensor, move.source.tensor)
        came_from[move.result] = source
        if source not in made and len(trace.tensors[source].shape) == 2:
            yield move


def returned_bytes(trace: Trace, backward: Backward) -> int:
    """Returns the size of the gradients that the nodes of moves took to the other device."""
    assert backward.graph is not None
    nodes = trace.graphs[backward.graph].nodes
    executed = range(len(nodes)) if backward.executed is None else backward.executed
    copies = [nodes[index] for index in executed if nodes[index].name == "ToCopyBackward0"]
    return sum(4 * torch.Size(node.shape).numel() for node in copies)


def findings(trace: Trace) -> Counter[str]:
    return Counter(finding.code for finding in judge(trace, Selection()).findings)


def step_seconds(step: Step, given: list[Batch]) -> list[float]:
    seconds = []
    for text_embeddings, images in given:
        start = time.thread_time()
        step(text_embeddings, images)
        seconds.append(time.thread_time() - start)
    return seconds


def ratios(steps: dict[str, Step], given: list[Batch], rounds: int) -> dict[str, float]:
    """Returns the time of each step over that of the first, the median over rounds of interleaved blocks."""
    for step in steps.values():
        step_seconds(step, given[:BLOCK_STEPS])
    first, *others = steps
    found: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(rounds):
        medians = {
            name: statistics.median(step_seconds(step, given[:BLOCK_STEPS])) for name, step in steps.items()
        }
        for name in others:
            found[name].append(medians[name] / medians[first])
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = CaptionedDigits()
    size = dataset.embedding.dimension
    *full, short = batches(dataset, options.batch_size)
    makers = {
        "published": lambda: published("cuda", size, options.batch_size).step,
        "reference": lambda: reference("cuda", size).step,
    }
    traces = {name: recorded(make, full[:STEPS]) for name, make in makers.items()}
    costs = {name: cost(trace, STEPS) for name, trace in traces.items()}
    title = f"a step of {options.batch_size} pairs"
    print(f"{title:28}{'published':>12}{'reference':>12}{'ratio':>8}")
    for field in Cost._fields:
        ours, theirs = (getattr(costs[name], field) for name in ("reference", "published"))
        print(f"{field.replace('_', ' '):28}{theirs:12,}{ours:12,}{ours / theirs:8.2f}")
    for name, trace in traces.items():
        told = ", ".join(f"{count} x {rule}" for rule, count in sorted(findings(trace).items())) or "nothing"
        print(f"graphlint on the {name} step: {told}")
    try:
        published("cpu", size, options.batch_size).step(*short)
    except RuntimeError as error:
        print(f"the published step on the last {len(short[1])} pairs: {str(error).partition('. ')[0]}")
    reference("cpu", size).step(*short)
    times = ratios(
        {
            "published": published("cpu", size, options.batch_size).step,
            "published, without its clean-up": published(
                "cpu", size, options.batch_size, cleans_up=False
            ).step,
            "reference": reference("cpu", size).step,
        },
        full,
        options.rounds,
    )
    shorter, ours = times["published, without its clean-up"], times["reference"]
    print(f"CPU time of a step: {ours:.3f} of the published; {ours / shorter:.2f} of it without its clean-up")


if __name__ == "__main__":
    main()
