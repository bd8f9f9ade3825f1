"""A small language of training programs, and the Python that each stands for.

A program has two or three linear modules, an optimizer for each group of them, and one loop over batches
whose body is a list of statements. Names are assigned once, but for `carried`, which lives across batches.
"""

from dataclasses import dataclass
from typing import Literal

WIDTH = 3
BATCH = "x"
CARRIED = "carried"


@dataclass(frozen=True)
class Forward:
    """`target = module(source)`, with `.tanh()` behind it where wanted."""

    target: str
    module: str
    source: str
    tanh: bool = False

    def __str__(self) -> str:
        return f"{self.target} = {self.module}({self.source}){'.tanh()' if self.tanh else ''}"


@dataclass(frozen=True)
class Detach:
    """`target = source.detach()`."""

    target: str
    source: str

    def __str__(self) -> str:
        return f"{self.target} = {self.source}.detach()"


@dataclass(frozen=True)
class Join:
    """`target = left + right`, or `*`."""

    target: str
    left: str
    right: str
    sign: Literal["+", "*"] = "+"

    def __str__(self) -> str:
        return f"{self.target} = {self.left} {self.sign} {self.right}"


@dataclass(frozen=True)
class Loss:
    """`target = source.pow(2).mean()`, or `.mean()` alone, which saves nothing."""

    target: str
    source: str
    squared: bool = True

    def __str__(self) -> str:
        return f"{self.target} = {self.source}{'.pow(2)' if self.squared else ''}.mean()"


@dataclass(frozen=True)
class Shift:
    """`target.add_(1.0)`: a change in place."""

    target: str

    def __str__(self) -> str:
        return f"{self.target}.add_(1.0)"


@dataclass(frozen=True)
class Backward:
    """`loss.backward()`."""

    loss: str
    retain: bool = False

    def __str__(self) -> str:
        return f"{self.loss}.backward({'retain_graph=True' if self.retain else ''})"


@dataclass(frozen=True)
class Step:
    """`optimizer.step()`."""

    optimizer: str

    def __str__(self) -> str:
        return f"{self.optimizer}.step()"


@dataclass(frozen=True)
class Zero:
    """`optimizer.zero_grad()`."""

    optimizer: str

    def __str__(self) -> str:
        return f"{self.optimizer}.zero_grad()"


@dataclass(frozen=True)
class Carry:
    """`carried = source`, detached where wanted; the last statement of a body."""

    source: str
    detached: bool = False

    def __str__(self) -> str:
        return f"{CARRIED} = {self.source}{'.detach()' if self.detached else ''}"


Computation = Forward | Detach | Join | Loss | Shift | Carry
Statement = Computation | Backward | Step | Zero


@dataclass(frozen=True)
class Program:
    """A training program; `optimizers` maps each optimizer's name to the modules that it trains."""

    modules: tuple[str, ...]
    optimizers: tuple[tuple[str, tuple[str, ...]], ...]
    body: tuple[Statement, ...]
    batches: int = 4

    @property
    def head(self) -> list[str]:
        """The lines before the body."""
        lines = ["import torch", "from torch import nn", "from torch.utils.data import DataLoader", ""]
        lines += ["torch.manual_seed(0)"]
        lines += [f"{module} = nn.Linear({WIDTH}, {WIDTH})" for module in self.modules]
        for name, modules in self.optimizers:
            parameters = ", ".join(f"*{module}.parameters()" for module in modules)
            lines.append(f"{name} = torch.optim.SGD([{parameters}], lr=0.1)")
        lines.append(f"batches = DataLoader(torch.randn({2 * self.batches}, {WIDTH}), batch_size=2)")
        if any(isinstance(statement, Carry) for statement in self.body):
            lines.append(f"{CARRIED} = torch.zeros(2, {WIDTH})")
        return [*lines, f"for {BATCH} in batches:"]

    @property
    def source(self) -> str:
        """The whole script."""
        return "\n".join([*self.head, *(f"    {statement}" for statement in self.body), ""])

    def line(self, position: int) -> int:
        """Returns the 1-based line of a statement of the body, by its 0-based position."""
        return len(self.head) + 1 + position
