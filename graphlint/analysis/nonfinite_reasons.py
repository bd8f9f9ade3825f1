"""Why an operation makes a NaN or an infinity, and what to write instead; may import `record` alone.

Told of the operations whose dangerous arguments are few: with any other it is overflow that is left.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """Why, and what to do. `{x}` stands for what the operation read, `{y}` for its second argument."""

    why: str
    remedy: str


_ABOVE_0 = "keep its argument above 0: `torch.log({x}.clamp_min(1e-8))`"
_DIVISOR = "keep the divisor away from 0: `{x} / ({y} + 1e-8)`"
_INSIDE = "clamp its argument: `{x}.clamp(-1 + 1e-6, 1 - 1e-6)`"
_UNDER_ROOT = "add a small constant under the root: `torch.sqrt({x} + 1e-8)`"
_BASE = "keep the base above 0: `{x}.clamp_min(1e-8)`"
_FEW = "leave the term out where there is only one element, or pass `correction=0`"
_ROWS = "leave an entry of each row unmasked, or mask with a large finite number such as -1e9"
_DISTANCE = "add a small constant to the squared distance before its root"
_OUTSIDE = "was given a value outside of -1 to 1"

_LOG = Words("was given a value at or below 0", _ABOVE_0)
_MASKED = Words("was given a row of nothing but -infinity", _ROWS)
_ONE = Words("was taken over a single element", _FEW)
_NO_NORM = Words(
    "a vector of zeros has no derivative of its norm",
    "write the norm out with a small constant: `({x}.pow(2).sum(-1) + 1e-8).sqrt()`",
)
_NO_DISTANCE = Words("a distance of 0 has no derivative", _DISTANCE)

_FORWARD: Mapping[str, Words] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "xlogy"), _LOG),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), _MASKED),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _ONE),
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin"), Words(_OUTSIDE, _INSIDE)),
    "sqrt": Words(
        "was given a value below 0", "keep its argument above 0: `torch.sqrt({x}.clamp_min(1e-8))`"
    ),
    "rsqrt": Words("was given a value at or below 0", "add a small constant: `torch.rsqrt({x} + 1e-8)`"),
    "div": Words("divides by 0, or by something so small that the result overflows", _DIVISOR),
    "reciprocal": Words("was given 0", "keep its argument away from 0: `1 / ({x} + 1e-8)`"),
    "exp": Words(
        "overflows, since in float32 its argument may be 88 at most",
        "limit its argument (`{x}.clamp(max=20)`), or use what is made for it (`logsumexp`, `softmax`)",
    ),
    "pow": Words("was given a base at or below 0 that its exponent doesn't allow, or overflows", _BASE),
    "mean": Words("was taken over no elements", "leave the term out where nothing is selected"),
    "atanh": Words("was given a value at or outside of -1 to 1", _INSIDE),
    "logit": Words("was given 0 or 1", "pass `eps=1e-6`"),
    "cross_entropy": Words(
        "averages over no target, or over a class whose logit is -infinity",
        "leave the loss out where every target is ignored, and mask no class that is a target",
    ),
    "nll_loss": Words(
        "averages over no target, or over a class of probability 0",
        "leave the loss out where every target is ignored, and keep probabilities above 0",
    ),
}

_BACKWARD: Mapping[str, Words] = {
    **dict.fromkeys(("Norm", "LinalgVectorNorm"), _NO_NORM),
    **dict.fromkeys(("Cdist", "EuclideanDist", "Pdist", "Hypot", "Dist"), _NO_DISTANCE),
    **dict.fromkeys(("Acos", "Asin"), Words("its derivative at -1 and at 1 is infinite", _INSIDE)),
    **dict.fromkeys(
        ("Std", "StdMean"),
        Words(
            "it has no derivative where all elements are equal",
            "use `torch.sqrt({x}.var(...) + 1e-8)` instead",
        ),
    ),
    "Sqrt": Words("its derivative at 0 is infinite", _UNDER_ROOT),
    "Rsqrt": Words("its derivative near 0 overflows", "add a small constant: `torch.rsqrt({x} + 1e-8)`"),
    "Pow": Words("its derivative at 0 is infinite for exponents below 1", _BASE),
    "Atan2": Words("it has no derivative where both arguments are 0", "add a small constant: `{y} + 1e-8`"),
    "Div": Words("the divisor is 0, or so small that the derivative overflows", _DIVISOR),
    "Log": Words("its derivative at 0 is infinite", _ABOVE_0),
    "Reciprocal": Words("its derivative at 0 is infinite", "add a small constant: `1 / ({x} + 1e-8)`"),
}


OVERFLOW = Words("overflows", "keep the values small: normalise what goes in, clip the gradients")
"""What is left where an operation has no dangerous argument of its own."""


def forward_words(name: str) -> Words | None:
    """Returns the words for a function of torch's whose result is not finite."""
    return _FORWARD.get(name)


def backward_words(kind: str) -> Words | None:
    """Returns the words for a kind of node, such as `Sqrt`, whose gradient is not finite."""
    return _BACKWARD.get(kind)
