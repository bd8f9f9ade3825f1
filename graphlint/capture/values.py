"""Notices where NaN and infinities come from among the results of a step's operations, at the full level.

May import `record` and the rest of `capture`. Most results need no look: a view passes values on, and a sum
or a linear layer makes no NaN of finite numbers unless it overflows, which the loss then shows. Nothing is
held but numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch

from graphlint.capture.extents import extent_of
from graphlint.capture.recorder import Recorder
from graphlint.record.events import Use
from graphlint.record.identity import OptimizerId, Serial, TensorId
from graphlint.record.values import Extent, Seen, ValuesSeen

MAX_TOLD = 12
"""How often in a run the values of a step are told."""

_MAX_SEEN = 4_000

_STRUCTURE = """
    view reshape flatten unflatten ravel view_as reshape_as permute transpose t mT T mH H swapaxes movedim
    squeeze unsqueeze expand expand_as broadcast_to repeat repeat_interleave tile cat concat stack hstack
    vstack split chunk unbind tensor_split select narrow index_select gather take roll flip rot90
    contiguous clone detach detach_ requires_grad_ data __getitem__ __iter__ unfold fold pad diagonal tril
    triu topk sort argsort unique meshgrid broadcast_tensors atleast_1d atleast_2d cuda cpu zero_ zeros
    zeros_like ones ones_like full full_like empty empty_like rand rand_like randn randn_like randint
    arange linspace eye tensor as_tensor from_numpy new_zeros new_ones new_full new_empty new_tensor fill_
    masked_fill masked_fill_ where normal_ uniform_ bernoulli one_hot embedding isfinite isnan isinf
    nan_to_num nan_to_num_
"""
_SAFE = """
    add add_ __add__ __radd__ __iadd__ sub sub_ rsub __sub__ __rsub__ __isub__ mul mul_ multiply __mul__
    __rmul__ __imul__ neg __neg__ abs __abs__ relu relu_ relu6 leaky_relu leaky_relu_ elu selu gelu silu
    hardswish hardtanh hardsigmoid softplus sigmoid tanh clamp clamp_ clamp_min clamp_max clip sign sgn
    round floor ceil sin cos linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d matmul __matmul__ mm bmm addmm baddbmm einsum dropout dropout_ max min maximum
    minimum amax amin sum cumsum max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d interpolate batch_norm layer_norm group_norm instance_norm
    rms_norm lerp lerp_ square logical_not eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    copy_
"""

_PASSES_ON = frozenset(_STRUCTURE.split())
_OVERFLOWS_AT_MOST = frozenset(_SAFE.split())
_SHORT = frozenset({torch.float16, torch.complex32})


class ValueWatch:
    """Looks at the results of operations, and tells what it saw once something was not finite.

    Attributes:
        bad_result: a result of this step was a NaN or an infinity.
        zero_gradients: the optimizers whose last step was given gradients of zeros alone, among others: where
            they come from is worth looking for.
        half: results in half precision were seen, which overflow at 65,504.
        losses: the finite values of the loss that was differentiated last: the first, then the last few.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: list[Seen] = []
        self._kinds: dict[Any, int] = {}
        self._told = 0
        self.bad_result = False
        self.half = False
        self.losses: Sequence[float] = ()
        self.zero_gradients: set[OptimizerId] = set()

    def new_step(self) -> None:
        """Forgets what was seen in the step before."""
        self._seen.clear()
        self.bad_result = False

    def asks(self, function: Any, outputs: Sequence[torch.Tensor]) -> bool:
        """Tells whether the results of a call are worth a look."""
        kind = self._kinds.get(function)
        if kind is None:
            name = getattr(function, "__name__", "")
            name = name if name != "__get__" else getattr(getattr(function, "__self__", None), "__name__", "")
            kind = 0 if name in _PASSES_ON else 1 if name in _OVERFLOWS_AT_MOST else 2
            self._kinds[function] = kind
        if kind == 1:
            short = any(output.dtype in _SHORT for output in outputs)
            self.half = self.half or short
            return short
        return kind == 2  # noqa: PLR2004 - the last of three kinds

    def look(
        self,
        serial: Serial,
        inputs: Sequence[tuple[Use, torch.Tensor]],
        outputs: Sequence[tuple[TensorId, torch.Tensor]],
    ) -> None:
        """Looks at the results of the operation `serial`, and at what it read where they are not finite.

        Args:
            serial: the operation.
            inputs: what it read, those that it changed in place left out.
            outputs: what came of it.
        """
        if len(self._seen) >= _MAX_SEEN:
            return
        bad = False
        for number, tensor in outputs:
            extent = extent_of(tensor)
            if extent is not None:
                self._seen.append(Seen(number, serial, made=True, extent=extent))
                bad = bad or is_bad(extent)
        if bad:
            self.bad_result = True
            for use, tensor in inputs:
                extent = extent_of(tensor)
                if extent is not None:
                    self._seen.append(Seen(use.tensor, serial, made=False, extent=extent))

    def tell(self) -> None:
        """Emits what was seen in this step, with how all tensors stand that the script still holds."""
        if self._told >= MAX_TOLD:
            return
        self._told += 1
        serial = self._recorder.next_serial()
        held = []
        for number, tensor in list(self._recorder.tensors.live().items())[:_MAX_SEEN]:
            extent = extent_of(tensor)
            if extent is not None:
                held.append(Seen(TensorId(number), serial, made=False, extent=extent))
        self._recorder.emit(ValuesSeen(serial=serial, values=(*self._seen, *held)))


def is_bad(extent: Extent | None) -> bool:
    """Tells a NaN or an infinity."""
    return extent in {"nan", "inf"}
