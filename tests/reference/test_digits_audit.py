"""graphlint on the reference with its own networks and data: nothing to report, wherever the networks are."""

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from graphlint.capture.options import CaptureOptions
from graphlint.capture.session import Session
from graphlint.lint.runner import judge
from graphlint.lint.selection import Selection
from graphlint.record.events import OptimizerStep
from graphlint.reference import SplitDeviceGANTrainer
from graphlint.reference.data import CaptionedDigits
from graphlint.reference.models import DIGIT_OPTIONS, NOISE_SIZE, DigitDiscriminator, DigitGenerator

OPTIONS = {fakes: msgspec.structs.replace(DIGIT_OPTIONS, fakes=fakes) for fakes in ("reuse", "fresh")}


@pytest.fixture(scope="module")
def digits() -> CaptionedDigits:
    return CaptionedDigits()


@pytest.mark.parametrize("fakes", ["reuse", "fresh"])
@pytest.mark.parametrize("places", [("cpu", "cpu"), ("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_nothing_is_reported(digits, places, fakes):
    size = digits.embedding.dimension
    session = Session(CaptureOptions(level="full", simulate=("cuda",) if "cuda" in places else ()))
    with session:
        torch.manual_seed(0)
        trainer = SplitDeviceGANTrainer(
            DigitGenerator(NOISE_SIZE, size),
            DigitDiscriminator(size),
            generator_device=places[0],
            discriminator_device=places[1],
            noise_size=NOISE_SIZE,
            options=OPTIONS[fakes],
        )
        for epoch in range(2):
            digits.set_epoch(epoch)
            for text_embeddings, images in DataLoader(Subset(digits, range(37)), batch_size=16):
                trainer.step(text_embeddings, images)
            trainer.sample(text_embeddings, seed=epoch)
        session.close("finished", 0)
    trace = session.trace()
    report = judge(trace, Selection())
    assert [f"{finding.path}:{finding.line}: {finding.code}" for finding in report.findings] == []
    assert {outcome.outcome for outcome in report.outcomes} <= {"clean", "not-checked"}
    assert sum(isinstance(event, OptimizerStep) for event in trace.events) == 2 * 2 * 3
