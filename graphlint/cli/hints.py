"""The one line of advice after a script that asked for a device which is not there.

Words an exception that torch raised; decides nothing. May import `capture.messages`.
"""

from graphlint.capture.messages import message_of

_NO_CUDA = (
    "Torch not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "Attempting to deserialize object on a CUDA device",
    "Cannot access accelerator device when none is available",
)


def hint_for(error: BaseException | None, simulate: tuple[str, ...]) -> str | None:
    """Returns advice for a script that ended because there is no CUDA; None for any other ending."""
    if simulate:
        return None
    seen: list[BaseException] = []
    while error is not None and not any(error is known for known in seen):
        text = message_of(error)
        if isinstance(error, AssertionError | RuntimeError) and any(part in text for part in _NO_CUDA):
            return "hint: the script asks for CUDA, which this machine lacks; --simulate cuda runs it without"
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None
