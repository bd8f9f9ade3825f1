"""The model of autograd says what torch does: the same errors at the same lines, the same gradients."""

import re
import traceback

from hypothesis import given, settings
from programs import language as lang
from programs.autograd import Machine
from programs.drawing import programs

ERRORS = {
    "freed": "a second time",
    "changed": "modified by an inplace operation",
    "no graph": "does not require grad",
}


def ending(program: lang.Program) -> tuple[str, int, dict[str, bool]]:
    """Runs a program in torch: the message and line of its error, and which modules hold gradients."""
    held: dict[str, object] = {"__name__": "__main__"}
    message, line = "", 0
    try:
        exec(compile(program.source, "program.py", "exec"), held)  # noqa: S102 - that is its purpose
    except RuntimeError as error:
        message = str(error)
        line = max(
            frame.lineno or 0
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == "program.py"
        )
    gradients = {module: held[module].weight.grad is not None for module in program.modules}  # type: ignore[attr-defined]
    return message, line, gradients


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_model_ends_as_torch_does(program: lang.Program) -> None:
    machine = Machine(program).run()
    message, line, gradients = ending(program)
    if machine.error is None:
        assert message == "", program.source
        assert gradients == {module: bool(fills) for module, fills in machine.gradients.items()}
    else:
        assert machine.failed is not None
        assert re.search(ERRORS[machine.error], message), program.source
        assert line == program.line(machine.failed.position), program.source
