"""`graphlint reference`: trains the reference GAN and samples from it.

May import everything; torch and the libraries of the extra `reference` come in when a command runs.
"""

import sys
from pathlib import Path

import click

from graphlint.cli import options as shared
from graphlint.cli import outputs
from graphlint.errors import UsageError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell gives it for a program that SIGINT ended."""

MAX_SEED = 2**63 - 1
"""The largest seed that torch takes, as `graphlint.reference.options` has it, which imports torch."""

STEPS = 4000
"""Training steps of a run that nothing else is said of."""


@click.group(
    context_settings=dict(shared.CONTEXT),
    no_args_is_help=False,
    short_help="Train the corrected split-device GAN, and sample from it.",
)
def reference() -> None:
    """Trains a text-to-image GAN on handwritten digits, its two networks on devices of your choice.

    It is the training loop that graphlint finds nothing to say about: graphlint/reference/trainer.py is there
    to be copied. Needs torch-graphlint[reference].
    """


@reference.command(context_settings=dict(shared.CONTEXT), short_help="Train, or go on with a run.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="Directory of the run: checkpoint.pt, metrics.jsonl, samples/.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Training steps in all, those before an interruption included. Default: {STEPS}.",
)
@click.option(
    "--generator-device",
    metavar="DEVICE",
    help="Default: cuda:0 where there is one, else cpu.",
)
@click.option("--discriminator-device", metavar="DEVICE", help="Default: cpu.")
@click.option("--fakes", type=click.Choice(("reuse", "fresh")), help="Default: reuse.")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Default: 64.")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), metavar="N", help="Default: 0.")
@click.option("--autocast", type=click.Choice(("bfloat16",)), help="Run the forwards in mixed precision.")
@click.option("--generator-learning-rate", type=float, metavar="X", help="Of the generator's optimizer.")
@click.option("--discriminator-learning-rate", type=float, metavar="X", help="Of the discriminator's.")
@click.option("--max-gradient-norm", type=float, metavar="X", help="Clip gradients to this norm.")
@click.option(
    "--resume", is_flag=True, help="Go on from the checkpoint in DIR, with the options it was begun with."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
def train(  # noqa: PLR0913 - one argument per option of the command
    *,
    out: Path,
    steps: int | None,
    generator_device: str | None,
    discriminator_device: str | None,
    fakes: str | None,
    batch_size: int | None,
    seed: int | None,
    autocast: str | None,
    generator_learning_rate: float | None,
    discriminator_learning_rate: float | None,
    max_gradient_norm: float | None,
    resume: bool,
    quiet: bool,
) -> int:
    """Trains on scikit-learn's handwritten digits and their captions.

    Ctrl-C saves what was reached. A run that was interrupted, or killed, and resumed ends with the weights of
    one that wasn't.
    """
    from graphlint.reference.devices import one_thread
    from graphlint.reference.digits import digits_run, require_extra

    require_extra()
    asked = {"steps": steps, "batch_size": batch_size, "seed": seed}
    if steps is None and not resume:
        asked["steps"] = STEPS
    changes = {
        "fakes": fakes,
        "autocast": autocast,
        "generator_learning_rate": generator_learning_rate,
        "discriminator_learning_rate": discriminator_learning_rate,
        "max_gradient_norm": max_gradient_norm,
    }
    run = digits_run(
        out,
        devices=(generator_device, discriminator_device),
        run_changes={name: value for name, value in asked.items() if value is not None},
        trainer_changes={name: value for name, value in changes.items() if value is not None},
        resume=resume,
        stream=None if quiet else sys.stderr,
    )
    notes = outputs.Notes(sys.stderr)
    try:
        with one_thread():
            checkpoint = run.train(resume=resume)
    except KeyboardInterrupt:
        notes.write(f"interrupted after step {run.saved_steps}; go on with: {_again(out)}")
        return INTERRUPTED
    click.echo(f"trained {run.saved_steps} steps; sample with:")
    click.echo(
        f'  graphlint reference sample --checkpoint {checkpoint} --text "a handwritten seven" --out seven.png'
    )
    return 0


@reference.command(context_settings=dict(shared.CONTEXT), short_help="Draw images of a text.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="checkpoint.pt of a run.",
)
@click.option(
    "--text", "texts", multiple=True, required=True, metavar="TEXT", help="What to draw; repeatable."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The PNG to write."
)
@click.option(
    "--count", type=click.IntRange(1, 64), default=8, metavar="N", help="Images of each text. Default: 8."
)
@click.option(
    "--seed", type=click.IntRange(0, MAX_SEED), default=0, metavar="N", help="Of the noise. Default: 0."
)
def sample(*, checkpoint: Path, texts: tuple[str, ...], out: Path, count: int, seed: int) -> int:
    """Draws images of each TEXT with the generator of a checkpoint, and writes them as one PNG."""
    from graphlint.reference.digits import require_extra, sample_digits
    from graphlint.reference.grids import save_png

    require_extra()
    outputs.refuse_overwriting([checkpoint], [out])
    if out.suffix.lower() != ".png":
        raise UsageError(f"{out} names no picture; end it in .png")
    save_png(sample_digits(checkpoint, texts, columns=count, seed=seed), out)
    click.echo(out)
    return 0


def _again(out: Path) -> str:
    return f"graphlint reference train --out {out} --resume"
