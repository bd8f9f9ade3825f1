"""The one line of advice after a script that asked for a device which is not there.

Words an exception that torch raised; decides nothing. May import `capture.messages`.
"""

from collections.abc import Iterator

from graphlint.capture.messages import message_of

_NO_CUDA = (
    "Torch not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "Attempting to deserialize object on a CUDA device",
    "Cannot access accelerator device when none is available",
)
_NO_SUCH_CUDA = "invalid device ordinal"


def hint_for(error: BaseException | None, simulate: tuple[str, ...]) -> str | None:
    """Returns advice for a script that ended because a CUDA device is missing; None for any other ending."""
    texts = list(_messages(error))
    if simulate:
        if not any(_NO_SUCH_CUDA in text for text in texts):
            return None
        return (
            f"hint: the script asks for a CUDA device beyond those of --simulate {','.join(simulate)}; "
            "--simulate cuda:1 gives it a second one, cuda:2 a third"
        )
    if any(part in text for text in texts for part in _NO_CUDA):
        return "hint: the script asks for CUDA, which this machine lacks; --simulate cuda runs it without"
    return None


def _messages(error: BaseException | None) -> Iterator[str]:
    """Yields what the exception says that ended the script, and those that it came of."""
    seen: list[BaseException] = []
    while error is not None and not any(error is known for known in seen):
        if isinstance(error, AssertionError | RuntimeError):
            yield message_of(error)
        seen.append(error)
        error = error.__cause__ or error.__context__
