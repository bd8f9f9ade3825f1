"""A script under capture behaves, prints and ends as under plain Python; all share this process's torch."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphlint.capture.options import CaptureOptions
from graphlint.capture.runner import Run, Runner
from graphlint.capture.runner_program import ModuleTarget, ScriptTarget, Target
from graphlint.capture.session import active_session
from graphlint.errors import UsageError
from graphlint.record.events import Backward

TRAIN = """
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(count):
    for step in range(count):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""

Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    finders = list(sys.meta_path)
    yield
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    for name in set(sys.modules) - before:
        if "tests" in name:
            del sys.modules[name]
    assert sys.meta_path == finders
    assert active_session() is None


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(source: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


def run(target: str | Target, *argv: str, steps: int | None = None) -> Run:
    chosen = ScriptTarget(target) if isinstance(target, str) else target
    return Runner(chosen, argv).run(CaptureOptions(steps=steps, script="script.py", argv=argv))


def plain(script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *argv], check=False, capture_output=True, text=True, timeout=60
    )


NAMESPACE = """
import sys, builtins
facts = {name: repr(value) for name, value in globals().items() if name not in ("facts", "__loader__")}
facts["__builtins__"] = __builtins__ is builtins
print(facts, type(__loader__).__name__, __loader__.name, __loader__.path)
print(sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals())
"""


def test_namespace_argv_and_path_equal_plain_python(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(NAMESPACE)
    ended = run("script.py", "--steps", "3", "--", "-x")
    expected = plain("script.py", "--steps", "3", "--", "-x")
    assert expected.returncode == 0, expected.stderr
    ours = capsys.readouterr().out
    assert ours == expected.stdout
    assert (ended.how, ended.exit_code, ended.error) == ("finished", 0, None)


ENDINGS = {
    "chained": """
        def first():
            return {}["missing"]
        def second():
            try:
                first()
            except KeyError as error:
                raise ValueError("two\\nlines") from error
        try:
            second()
        except ValueError:
            raise RuntimeError("third")
        """,
    "suppressed": """
        try:
            1 / 0
        except ZeroDivisionError:
            raise ValueError("alone") from None
        """,
    "group": """
        def fail(number):
            raise ValueError(number)
        errors = []
        for number in range(3):
            try:
                fail(number)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("several", [*errors, ExceptionGroup("inner", [TypeError("deep")])])
        """,
    "recursion": """
        def down(n):
            return down(n + 1) if n < 50 else 1 / 0
        down(0)
        """,
    "notes": """
        error = KeyError("k")
        error.add_note("a note")
        raise error
        """,
    "syntax in an import": "import broken_of_tests\n",
    "missing import": "import package_of_tests_that_is_not_there\n",
    "message": "import sys\nsys.exit('leaving now')\n",
    "hook": """
        import sys
        def hook(kind, error, trace):
            where = trace.tb_frame.f_code.co_name
            print("hook:", kind.__name__, error, where, trace.tb_next, file=sys.stderr)
        sys.excepthook = hook
        raise ValueError("seen")
        """,
    "failing hook": """
        import sys
        def hook(kind, error, trace):
            raise TypeError("in the hook")
        sys.excepthook = hook
        raise ValueError("original")
        """,
    "unprintable": """
        class Odd(Exception):
            def __str__(self):
                raise ValueError("no text")
        raise Odd
        """,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_stderr_of_an_ending_equals_plain_python(
    name: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_of_tests.py").write_text("x = 1\ndef f(:\n    pass\n")
    script = write(ENDINGS[name])
    ended = run(script)
    expected = plain(script)
    assert expected.stderr, "the comparison needs something to compare"
    assert capsys.readouterr().err == expected.stderr
    assert ended.exit_code == expected.returncode == 1


TORCH_ERRORS = (
    TRAIN
    + """
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))
    def forward(self, x):
        return self.inner(x)
class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("in backward")
def module():
    Net()(torch.ones(1, 3))
def composite():
    F.cross_entropy(torch.ones(2, 3), torch.ones(5, dtype=torch.long))
def operator():
    torch.ones(2, 3) @ torch.ones(2, 3)
def in_user_mode():
    with Mode():
        F.cross_entropy(torch.ones(2, 3), torch.ones(5, dtype=torch.long))
def freed():
    loss = model(torch.ones(1, 2)).pow(2).sum()
    loss.backward()
    loss.backward()
def grad_twice():
    x = torch.ones(2, requires_grad=True)
    y = x.exp().sum()
    torch.autograd.grad(y, x)
    torch.autograd.grad(y, x)
def custom():
    Double.apply(torch.ones(2, requires_grad=True)).sum().backward()
def closure():
    def closure():
        raise LookupError("in the closure")
    optimizer.step(closure)
def loader():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 2
        def __getitem__(self, index):
            raise OSError("in the data")
    next(iter(torch.utils.data.DataLoader(Data())))
def no_grad():
    with torch.no_grad():
        model(torch.ones(1, 2)).sum().backward()
def cuda():
    torch.ones(2, device="meta") + torch.ones(3, device="meta")
train(2)
errors = []
fails = (module, composite, operator, in_user_mode, freed, grad_twice, custom, closure, loader, no_grad, cuda)
for fail in fails:
    try:
        fail()
    except Exception as error:
        errors.append(error)
assert len(errors) == 11
raise ExceptionGroup("all of them", errors)
"""
)


def test_frames_of_torch_equal_plain_python(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(TORCH_ERRORS)
    ended = run(script)
    expected = plain(script)
    assert "in the closure" in expected.stderr
    assert capsys.readouterr().err == expected.stderr
    assert ended.trace is not None
    assert any(isinstance(event, Backward) for event in ended.trace.events)


def test_last_exception_is_left_as_the_interpreter_leaves_it(write: Write) -> None:
    ended = run(write("raise ValueError('x')\n"))
    assert sys.last_value is ended.error
    assert sys.last_type is ValueError


@pytest.mark.parametrize(
    ("argument", "code"), [("", 0), ("None", 0), ("0", 0), ("7", 7), ("True", 1), ("'text'", 1), ("[]", 1)]
)
def test_sys_exit_codes(write: Write, argument: str, code: int) -> None:
    ended = run(write(f"import sys\nsys.exit({argument})\n"))
    assert (ended.how, ended.exit_code) == ("exit", code)
    assert ended.trace is not None
    assert ended.trace.end is not None
    assert (ended.trace.end.how, ended.trace.end.exit_code) == ("exit", code)


def test_interrupt_shows_its_traceback_and_keeps_the_record(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(f"{TRAIN}\nimport signal\ntrain(2)\nsignal.raise_signal(signal.SIGINT)\n")
    ended = run(script)
    assert (ended.how, ended.exit_code) == ("interrupt", None)
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):\n")
    assert error.endswith("KeyboardInterrupt\n")
    assert "graphlint" not in error
    assert ended.trace is not None
    assert ended.trace.end is not None
    assert (ended.trace.end.how, ended.trace.end.steps) == ("interrupt", 2)


def test_sigterm_ends_the_script_with_its_finally_blocks(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(
        write(
            f"""{TRAIN}
import signal
try:
    train(1)
    signal.raise_signal(signal.SIGTERM)
    print("not reached")
finally:
    print("saved")
"""
        )
    )
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("saved\n", "")
    assert ended.how == "terminated"


def test_the_scripts_own_sigterm_handler_stays(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(
        write(
            """
            import signal
            before = signal.signal(signal.SIGTERM, lambda number, frame: print("mine"))
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            """
        )
    )
    assert capsys.readouterr().out == "mine\n"
    assert ended.how == "finished"


def test_steps_stop_the_script_and_run_its_finally_blocks(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(f"{TRAIN}\ntry:\n    train(50)\nfinally:\n    print('cleaned up')\nprint('not reached')\n")
    ended = run(script, steps=2)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("cleaned up\n", "")
    assert (ended.how, ended.exit_code) == ("steps", None)
    assert ended.trace is not None
    assert ended.trace.end is not None
    assert (ended.trace.end.how, ended.trace.end.steps) == ("steps", 2)


def test_a_swallowed_stop_comes_again(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(
        f"""{TRAIN}
for attempt in range(20):
    try:
        train(5)
    except BaseException as error:
        print(type(error).__name__, attempt)
        if attempt >= 2:
            raise
"""
    )
    ended = run(script, steps=1)
    assert capsys.readouterr().out == "StopRun 0\nStopRun 1\nStopRun 2\n"
    assert ended.how == "steps"


def test_exit_in_answer_to_the_stop_is_no_failure(write: Write) -> None:
    script = write(f"{TRAIN}\nimport sys\ntry:\n    train(5)\nexcept BaseException:\n    sys.exit(5)\n")
    assert run(script, steps=1).how == "steps"


def test_an_error_while_stopping_hides_the_stop(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(f"{TRAIN}\ntry:\n    train(5)\nfinally:\n    raise ValueError('while saving')\n")
    ended = run(script, steps=1)
    error = capsys.readouterr().err
    assert ended.how == "error"
    assert error.endswith("ValueError: while saving\n")
    assert "StopRun" not in error
    assert "another exception occurred" not in error


def test_module_with_relative_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "pack_of_tests"
    package.mkdir()
    (package / "__init__.py").write_text("print('package', __name__)\n")
    (package / "helper.py").write_text("value = 7\n")
    (package / "train.py").write_text(
        "import sys\nfrom .helper import value\nprint(value, sys.argv, __name__)\n"
    )
    ended = run(ModuleTarget("pack_of_tests.train"), "-a", "b")
    argv = [str(package / "train.py"), "-a", "b"]
    assert capsys.readouterr().out == f"package pack_of_tests\n7 {argv} __main__\n"
    assert ended.how == "finished"


def test_unknown_module_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no module named nope_of_tests"):
        run(ModuleTarget("nope_of_tests"))


def test_an_audit_error_of_the_script_is_the_scripts(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(write("from graphlint.errors import UsageError\nraise UsageError('from the script')\n"))
    assert ended.how == "error"
    assert "UsageError: from the script" in capsys.readouterr().err


def test_a_script_that_never_imports_torch_leaves_an_empty_record(write: Write) -> None:
    ended = run(write("x = 1\n"))
    assert ended.trace is not None
    assert not any(isinstance(event, Backward) for event in ended.trace.events)
    assert ended.trace.complete
