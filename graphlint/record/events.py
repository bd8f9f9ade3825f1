"""Everything that can happen in a run, one frozen struct per kind of fact.

May import the rest of `record` only. Facts, never judgements: what was called, on what, with which
outcome. All events carry a `serial` (their order) and a `site` (None where no user frame was on the stack).
"""

from typing import Literal

import msgspec

from graphlint.record.base import Event
from graphlint.record.expectations import ExpectBegin, ExpectEnd
from graphlint.record.faults import CaptureFault, Operand
from graphlint.record.identity import GraphId, ModuleId, NodeId, OptimizerId, Serial, SiteId, TensorId
from graphlint.record.live import LiveGraphs, ParameterPlaced
from graphlint.record.modes import ModeChange
from graphlint.record.tables import Frame
from graphlint.record.values import BackwardValues, ValuesSeen


class Use(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor as an operation read it: its version counter and `requires_grad` at that moment."""

    tensor: TensorId
    version: int
    requires_grad: bool


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor whose version counter rose during a call: it was changed in place."""

    tensor: TensorId
    before: int
    after: int


class Op(Event, frozen=True, kw_only=True, tag="op"):
    """A call into torch that read or made tensors (full level).

    Attributes:
        name: torch's qualified name (`torch.Tensor.add_`, `torch.nn.functional.linear`); for a custom
            function `Name.apply`; for an assignment `torch.Tensor.data.__set__`.
        inputs: the tensors among the arguments, containers included, in order.
        outputs: the tensors that came back, containers included; an in-place call returns its input.
        output_grads: `requires_grad` of each output after the call.
        changed: tensors whose version rose. `.data` aliases have version counters of their own.
        host_inputs: serials of the host reads whose results came back as arguments of this call.
        seq: first and last-plus-one sequence number of the nodes that it built; equal when none.
        grad_mode: whether autograd was recording (`no_grad` and `inference_mode` switch it off).
        grad_site: where the innermost `no_grad`/`inference_mode` block or decorator that switched it off
            was entered, when known.
        error: torch's message, when the call raised.
    """

    name: str
    inputs: tuple[Use, ...] = ()
    outputs: tuple[TensorId, ...] = ()
    output_grads: tuple[bool, ...] = ()
    changed: tuple[Change, ...] = ()
    host_inputs: tuple[Serial, ...] = ()
    seq: tuple[int, int] = (0, 0)
    module: ModuleId | None = None
    call: Serial | None = None
    grad_mode: bool = True
    grad_site: SiteId | None = None
    error: str | None = None


class Transfer(Event, frozen=True, kw_only=True, tag="transfer"):
    """A call that asks for a tensor on a device: `.to`, `.cuda`, `.cpu`.

    `noop` means that the tensor was there already and came back as the same object. `bytes` were moved (0
    for a no-op). `dtype_changed` tells a `.to` that converted too. `method` is the name of the method called.
    `digest` is a checksum of the elements that doesn't depend on their order, where one was taken: on moves
    from or to the host, of tensors of moderate size whose elements are not all equal.
    """

    source: Use
    result: TensorId
    from_device: str
    to_device: str
    bytes: int
    method: str
    noop: bool = False
    dtype_changed: bool = False
    digest: int | None = None
    seq: tuple[int, int] = (0, 0)
    module: ModuleId | None = None
    call: Serial | None = None
    grad_mode: bool = True
    grad_site: SiteId | None = None


class ModuleMove(Event, frozen=True, kw_only=True, tag="module-move"):
    """`Module.to`, `.cuda`, `.cpu`: the module's parameters and buffers asked onto a device.

    `moved` of `tensors` were elsewhere before; `bytes` is their total size. Individual transfers of the
    parameters are not recorded.
    """

    module: ModuleId
    to_device: str
    tensors: int
    moved: int
    bytes: int
    method: str


class HostRead(Event, frozen=True, kw_only=True, tag="host-read"):
    """A tensor's value read into Python: `item`, `tolist`, `numpy`, `bool`, `float`, `int`, `format`.

    `by_torch` tells that torch's own code read it for itself, as a gradient scaler does.
    """

    tensor: Use
    method: str
    device: str
    bytes: int
    by_torch: bool = False


class ModuleCall(Event, frozen=True, kw_only=True, tag="module-call"):
    """A module's forward, from its start (`serial`) to its end (`end`, a serial as well) (full level).

    `inputs` and `outputs` are the tensors found in the arguments and the result, in order; `arguments` names
    the parameter of the forward that each input was given for. `training` is the module's mode. `parent` is
    the call that encloses it. A call that raised has no outputs.
    """

    module: ModuleId
    end: Serial
    parent: Serial | None = None
    inputs: tuple[TensorId, ...] = ()
    arguments: tuple[str, ...] = ()
    outputs: tuple[TensorId, ...] = ()
    training: bool = True
    grad_mode: bool = True
    error: str | None = None


class Visit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node of this backward's graph (0-based index) that an earlier backward had walked too.

    `freed` tells whether that earlier backward freed it. `node` is the node's identity when it was first
    walked, which is the identity in the earlier backward's own graph when that one was stored.
    """

    index: int
    backward: Serial
    freed: bool
    node: NodeId


class Backward(Event, frozen=True, kw_only=True, tag="backward"):
    """One run of the autograd engine asked for by the user.

    Attributes:
        call: which function was called.
        roots: the tensors it was called on.
        targets: the tensors given as `inputs` (`autograd.grad`, `backward(inputs=)`); empty: all leaves.
        retain_graph, create_graph: as they took effect (retain_graph defaults to create_graph).
        graph: the snapshot. At the watch level a backward whose graph has the shape of a stored one
            names that one and sets `same_shape`; node identities, and `roots`, are then those of the backward
            that stored it.
        nodes: how many nodes it would execute.
        executed: indexes of the executed nodes when they are fewer than all of the graph's; None: all.
        visits: nodes that earlier backwards had walked.
        reached: leaves whose `.grad` it fills, in the order of the walk.
        accumulated: those of `reached` that already held a gradient.
        error: torch's message, when it raised; `error_type` its class.
        calls: the module calls, in no other one, whose results it enters, of those that were recorded.
        outputs: the gradients that `autograd.grad` returned, where they are tensors of the record.
        nested: it ran inside another backward (reentrant checkpointing, a custom function).
        by_torch: torch's own code asked for it for the user (`torch.autograd.functional`, an optimizer).
        end: serial at which it returned; in-place hooks and custom functions may record events in between.
        values: what was seen of its values, where there was anything to tell.
    """

    call: Literal["Tensor.backward", "autograd.backward", "autograd.grad"]
    roots: tuple[TensorId, ...]
    targets: tuple[TensorId, ...] = ()
    retain_graph: bool = False
    create_graph: bool = False
    graph: GraphId | None = None
    same_shape: bool = False
    nodes: int = 0
    executed: tuple[int, ...] | None = None
    visits: tuple[Visit, ...] = ()
    reached: tuple[TensorId, ...] = ()
    accumulated: tuple[TensorId, ...] = ()
    calls: tuple[Serial, ...] = ()
    outputs: tuple[TensorId, ...] = ()
    error: str | None = None
    error_type: str | None = None
    nested: bool = False
    by_torch: bool = False
    end: Serial
    values: BackwardValues | None = None


class OptimizerStep(Event, frozen=True, kw_only=True, tag="optimizer-step"):
    """A call of `optimizer.step()`.

    `changed` holds the parameters that it wrote: their versions rose, or, where the optimizer is fused, they
    had a gradient and their versions stayed. `without_grad` holds those whose `.grad` was None when it was
    called (after the closure, when there is one). `unchanged` parameters had a gradient and were not written.
    `end` is the serial at which it returned: a closure's events lie in between.

    `gradients_checked` tells that the gradients' values were looked at as it was called (at the watch level:
    and were news): `zero_gradients` are then the parameters whose gradient was exactly zero everywhere,
    `bad_gradients` those whose gradient held a NaN or an infinity, none where a gradient scaler has the fused
    step leave such gradients out. `losses`, told with these, is what the latest loss was at its backwards:
    the first, then the last few.
    """

    optimizer: OptimizerId
    changed: tuple[Change, ...] = ()
    without_grad: tuple[TensorId, ...] = ()
    unchanged: tuple[TensorId, ...] = ()
    closure: bool = False
    gradients_checked: bool = False
    zero_gradients: tuple[TensorId, ...] = ()
    bad_gradients: tuple[TensorId, ...] = ()
    losses: tuple[float, ...] = ()
    error: str | None = None
    end: Serial


class GradientClip(Event, frozen=True, kw_only=True, tag="gradient-clip"):
    """`torch.nn.utils.clip_grad_norm_`, `clip_grads_with_norm_` or `clip_grad_value_`, as it ended.

    `parameters` are those that it was given, `with_grad` those of them that held a gradient then. `limit` is
    the bound; None where it was no finite number. `error` is torch's message where it raised: by value, torch
    refuses to clip nothing.
    """

    call: Literal["clip_grad_norm_", "clip_grad_value_"]
    parameters: tuple[TensorId, ...] = ()
    with_grad: tuple[TensorId, ...] = ()
    limit: float | None = None
    error: str | None = None


class SchedulerStep(Event, frozen=True, kw_only=True, tag="scheduler-step"):
    """A learning-rate scheduler's `step()`, when it has set the rates; `type` is its class.

    Attributes:
        scheduler: its number, from 0.
        initial: it is what its constructor does by itself.
        by_metric: it follows a measured quantity rather than a schedule.
        position: where in its schedule it stands now (`last_epoch`): 0 is the schedule's first value. None
            where it keeps none.
        optimizer_stepped: the optimizer has stepped since some scheduler was made for it, as torch has it.
        before, after: the learning rates of the optimizer's groups; None where one was no finite number.
    """

    optimizer: OptimizerId
    scheduler: int
    type: str
    initial: bool = False
    by_metric: bool = False
    position: float | None = None
    optimizer_stepped: bool = False
    before: tuple[float | None, ...] = ()
    after: tuple[float | None, ...] = ()


class ScalerCall(Event, frozen=True, kw_only=True, tag="scaler-call"):
    """A call of a gradient scaler (`torch.amp.GradScaler`) by the user; scalers are numbered from 0.

    `tensors` are those that `scale` was given, `scaled` what it returned (full level). A scaler that is not
    `enabled` does nothing. A call is noted when it has ended, with torch's message where it raised; `step` is
    noted as it begins: the optimizer's own step follows with the same site. Where an infinity left that out,
    `skipped` follows instead.
    """

    scaler: int
    method: Literal["scale", "unscale_", "step", "skipped", "update", "get_scale"]
    optimizer: OptimizerId | None = None
    tensors: tuple[TensorId, ...] = ()
    scaled: tuple[TensorId, ...] = ()
    enabled: bool = True
    error: str | None = None


class ZeroGrad(Event, frozen=True, kw_only=True, tag="zero-grad"):
    """`zero_grad()` of an optimizer or a module, or `.grad` set to None or zeroed by hand or by a step.

    `cleared` are the parameters that held a gradient; `already_clear` counts those that held none.
    """

    optimizer: OptimizerId | None = None
    module: ModuleId | None = None
    tensor: TensorId | None = None
    cleared: tuple[TensorId, ...] = ()
    already_clear: int = 0
    set_to_none: bool = True


class GradWrite(Event, frozen=True, kw_only=True, tag="grad-write"):
    """A tensor assigned to `.grad` by hand (full level)."""

    tensor: TensorId
    grad: TensorId


class GradRead(Event, frozen=True, kw_only=True, tag="grad-read"):
    """The user's code took a tensor's `.grad` into its hands (full level), noted once for each `grad`."""

    tensor: TensorId
    grad: TensorId


class Cleanup(Event, frozen=True, kw_only=True, tag="cleanup"):
    """`gc.collect()` or `torch.cuda.empty_cache()`; `collected` is what gc said it found."""

    call: Literal["gc.collect", "torch.cuda.empty_cache"]
    duration_ns: int
    collected: int = 0


class BatchDraw(Event, frozen=True, kw_only=True, tag="batch-draw"):
    """The user's loop drew a batch from a DataLoader; `loader` numbers the iterators from 0."""

    loader: int
    tensors: tuple[TensorId, ...] = ()


class StepBoundary(Event, frozen=True, kw_only=True, tag="step-boundary"):
    """A training step begins. Events after `after` and before the next boundary belong to it.

    `after` is the serial of the last event of what came before: a boundary that is known only in hindsight
    (an optimizer that comes round again) lies earlier than the event itself. With "evaluation" the level
    changes where no step is split: after one that is complete, or before one. `level` is the level from here.
    `clock_ns` is a monotonic clock at `after`, where it was read.
    """

    reason: Literal["start", "call", "batch", "optimizer", "manual", "evaluation"]
    after: Serial
    level: Literal["full", "watch"]
    clock_ns: int | None = None


class Repeat(Event, frozen=True, kw_only=True, tag="repeat"):
    """The steps that followed and were equal to an earlier one, event by event, and were not stored.

    `like` is the serial of the boundary that began the stored step; `count` steps in a row were equal to it.
    """

    like: Serial
    count: int


class ScriptError(Event, frozen=True, kw_only=True, tag="script-error"):
    """The exception that ended the run. `frames` are the user's, innermost first.

    `operands` are the tensors and modules' parameters named on the line that raised, where that frame's
    variables could be read.
    """

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    operands: tuple[Operand, ...] = ()


AnyEvent = (
    Op
    | Transfer
    | ModuleMove
    | HostRead
    | ModuleCall
    | Backward
    | OptimizerStep
    | ParameterPlaced
    | LiveGraphs
    | GradientClip
    | SchedulerStep
    | ScalerCall
    | ModeChange
    | ZeroGrad
    | GradWrite
    | GradRead
    | Cleanup
    | BatchDraw
    | StepBoundary
    | Repeat
    | ScriptError
    | ValuesSeen
    | ExpectBegin
    | ExpectEnd
    | CaptureFault
)
"""The closed union of events: match it exhaustively."""
