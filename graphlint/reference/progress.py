"""What a run shows while it trains: a bar with the losses on a terminal, a line now and then elsewhere.

May import rich. The bar is drawn by a thread of rich's and touches no tensor.
"""

from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class TrainingProgress:
    """Shows how far a run is; as a context manager, around the training.

    Args:
        stream: where it is shown; None: nowhere.
        steps: training steps in all.
    """

    def __init__(self, stream: TextIO | None, *, steps: int) -> None:
        self._console = Console(file=stream, quiet=stream is None, highlight=False, soft_wrap=True)
        self._steps = steps
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[losses]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=steps, losses="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        """Shows that so many steps are done."""
        self._bar.update(self._task, completed=step)

    def show(self, step: int, discriminator_loss: float, generator_loss: float) -> None:
        """Shows the latest losses in the bar."""
        losses = f"discriminator {discriminator_loss:.3f}  generator {generator_loss:.3f}"
        self._bar.update(self._task, completed=step, losses=losses)

    def report(self, step: int, discriminator_loss: float, generator_loss: float) -> None:
        """Prints the losses as a line, where no bar shows them."""
        if not self._console.is_terminal:
            self._console.print(
                f"step {step} of {self._steps}: discriminator {discriminator_loss:.3f}, "
                f"generator {generator_loss:.3f}",
                markup=False,
            )
