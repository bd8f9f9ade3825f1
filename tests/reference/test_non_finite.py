"""A NaN stops the run: the error names it, and the checkpoint is the last state that was good."""

import json

import pytest
import torch

from graphlint.errors import NonFiniteLossError
from graphlint.reference import TrainerOptions
from graphlint.reference.checkpoints import non_finite, read_checkpoint


def poisoned(tiny, tmp_path, when: int, value: float, **options):
    """Returns a run whose images hold a NaN from step `when` on, counted from 1."""
    dataset = tiny.Pairs()
    run = tiny.make_run(tmp_path, dataset=dataset, options=tiny.run_options(20, **options))

    def poison() -> None:
        if run.trainer.steps + 1 == when:
            dataset.images[:] = value

    dataset.before_item = poison
    return run


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_step_is_named_and_the_last_good_state_saved(tiny, tmp_path, value):
    run = poisoned(tiny, tmp_path, 11, value)
    with pytest.raises(NonFiniteLossError) as caught:
        run.train()
    text = str(caught.value)
    assert text.startswith("the discriminator's loss became ")
    assert "in step 11, epoch 3; the last good state, after step 10, is in " in text
    assert text.endswith("resume from there with lower learning rates, or with clipped gradients")
    state = read_checkpoint(tmp_path / "checkpoint.pt")
    assert state["trainer"]["steps"] == run.saved_steps == 10
    assert non_finite(state["trainer"]) is None
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[9]["discriminator_loss"] > 0
    assert rows[10]["discriminator_loss"] is None


def test_going_on_from_there_equals_a_run_without_the_nan(tiny, tmp_path):
    with pytest.raises(NonFiniteLossError):
        poisoned(tiny, tmp_path / "run", 11, float("nan")).train()
    tiny.make_run(tmp_path / "run").train(resume=True)
    tiny.make_run(tmp_path / "whole").train()
    runs = [tmp_path / name for name in ("run", "whole")]
    metrics = [(out / "metrics.jsonl").read_bytes() for out in runs]
    weights = [read_checkpoint(out / "checkpoint.pt")["trainer"]["generator"] for out in runs]
    assert metrics[0] == metrics[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_a_bad_weight_behind_good_losses_is_not_saved_as_good(tiny, tmp_path):
    options = TrainerOptions(ema_decay=None)
    run = tiny.make_run(tmp_path, trainer=tiny.make_trainer(options=options))

    def spoil(*_: object) -> None:
        if run.trainer.steps == 8:
            run.trainer.generator.out.bias.data[0] = float("inf")

    run.trainer.generator_optimizer.register_step_post_hook(spoil)
    with pytest.raises(
        NonFiniteLossError, match=r"^generator\.out\.bias holds NaN or infinite values after step 9;"
    ):
        run.train()
    assert read_checkpoint(tmp_path / "checkpoint.pt")["trainer"]["steps"] == 8


def test_bad_weights_at_the_start_are_told_before_the_first_step(tiny, tmp_path):
    trainer = tiny.make_trainer()
    trainer.discriminator.text.bias.data[1] = float("nan")
    with pytest.raises(
        NonFiniteLossError, match=r"^discriminator\.text\.bias holds .* before the first step$"
    ):
        tiny.make_run(tmp_path, trainer=trainer).train()
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_mask_of_infinities_is_no_fault(tiny, tmp_path):
    trainer = tiny.make_trainer()
    trainer.discriminator.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    tiny.make_run(tmp_path, trainer=trainer, options=tiny.run_options(2)).train()


def test_names_of_what_is_not_finite():
    good = torch.ones(2)
    assert non_finite({"a": [good, {"b": torch.arange(3)}], "c": "nan", "d": None}) is None
    assert non_finite({"a": [good, {"b": good / 0}]}) == "a.1.b"
    assert non_finite(torch.tensor(float("nan"))) == ""
