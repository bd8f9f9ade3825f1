"""What an exception of the user's says of itself, as plain text; imports the standard library only.

An exception may refuse to say anything, say it in a subclass of `str`, or say it at any length: none of that
may stop a tap or a report.
"""

from types import TracebackType

MAX_MESSAGE = 20_000
"""Characters of a message that are kept."""

_UNSAID = "<exception str() failed>"  # the interpreter's own words


class Forgiving:
    """Drops what the user's own methods raise in the block, as the interpreter does where it prints."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return isinstance(raised, Exception)


def text_of(value: object, *, otherwise: str) -> str:
    """Returns `str(value)` as a plain string; `otherwise` when the object can't be turned into one."""
    with Forgiving():
        return str.__str__(str(value))
    return otherwise


def message_of(error: BaseException) -> str:
    """Returns the exception's message, cut at `MAX_MESSAGE` characters; never raises an `Exception`."""
    return text_of(error, otherwise=_UNSAID)[:MAX_MESSAGE]


def kind_of(error: BaseException) -> str:
    """Returns the name of the exception's class, asked past any metaclass of the user's."""
    return vars(type)["__name__"].__get__(type(error))  # type: ignore[no-any-return]
