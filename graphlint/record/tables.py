"""What the events of a record talk about: places in the source, tensors, modules, optimizers, names.

May import `record.identity` only. Every struct is one line of a saved trace.
"""

from typing import Literal

import msgspec

from graphlint.record.identity import ModuleId, OptimizerId, Serial, SiteId, StorageId, TensorId


class Row(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="record",
):
    """Base of every line of a trace: immutable, strict about unknown fields."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame of the user's call chain.

    `line` is 1-based. `first_line` is the line of the enclosing function's `def` (1 for a module), which
    tells two functions of one name apart.
    """

    path: str
    line: int
    function: str
    first_line: int


class Site(Row, frozen=True, kw_only=True, tag="site"):
    """A place in the user's source from which torch was called.

    `frames` holds the user's frames only, innermost first; `frames[0]` is the line itself. `direct` tells
    that this line called torch itself; it is False where a library's code that it called did.
    """

    id: SiteId
    frames: tuple[Frame, ...]
    direct: bool = True


class Source(Row, frozen=True, kw_only=True, tag="source"):
    """The text of a source file at the time of the run, so that a trace can be judged anywhere."""

    path: str
    text: str


class Tensor(Row, frozen=True, kw_only=True, tag="tensor"):
    """A tensor, as it was when the recorder first met it.

    `shape` in elements, `dtype` as torch prints it (`torch.float32`), `device` as the script sees it (the
    simulated one under `--simulate`), `bytes` = elements x element size. `parameter` tells `nn.Parameter`.
    """

    id: TensorId
    storage: StorageId
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    requires_grad: bool = False
    leaf: bool = True
    parameter: bool = False


class Module(Row, frozen=True, kw_only=True, tag="module"):
    """A module.

    `root` is the outermost module it was met under (itself when it is one); `path` is its dotted place below
    that root (empty for the root). `by_mode` tells a layer of torch's that computes something else in train
    mode than in eval mode, as it was when it was met: it drops values at random (dropout with a rate above
    0), or normalises by its batch and keeps running statistics.
    """

    id: ModuleId
    type: str
    root: ModuleId
    path: str = ""
    by_mode: Literal["dropout", "statistics"] | None = None


class Parameter(Row, frozen=True, kw_only=True, tag="parameter"):
    """A parameter's or buffer's place in a module: `module` is the owner, `name` its attribute there."""

    tensor: TensorId
    module: ModuleId
    name: str
    buffer: bool = False


class Optimizer(Row, frozen=True, kw_only=True, tag="optimizer"):
    """An optimizer and its parameter groups; repeated with the same id when a group is added.

    `lrs` holds each group's learning rate when it was met; None where it was no finite number. `made` is the
    serial of the last event before it was made; -1 where that was not seen.
    """

    id: OptimizerId
    type: str
    groups: tuple[tuple[TensorId, ...], ...]
    lrs: tuple[float | None, ...] = ()
    site: SiteId | None = None
    made: Serial = Serial(-1)


class Name(Row, frozen=True, kw_only=True, tag="name"):
    """A name that the user gave: a variable, an attribute of self, an item of a named container.

    `scope` is the function whose frame held it (`<module>` for globals). An object may get several.
    """

    of: Literal["tensor", "module", "optimizer", "scheduler"]
    id: int
    name: str
    scope: str
