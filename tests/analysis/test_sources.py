import re

import pytest

from graphlint.record.tables import Frame, Source

CODE = """\
class Net:
    def forward(self, x):
        norm = x.rsqrt()
        self.kept = norm
        out, self.state = self.lstm(
            x,
            self.state,
        )
        return out

for step in range(
    3
):
    with torch.no_grad():
        loss = criterion(net(x["a"]), y).mean()
    total = a + b
"""


@pytest.fixture
def sources(build):
    return build(Source(path="train.py", text=CODE), Source(path="broken.py", text="def (:")).sources


def test_a_statement_over_several_lines_is_found_from_each_of_them(sources):
    for line in (5, 6, 7, 8):
        statement = sources.statement("train.py", line)
        assert (statement.first_line, statement.last_line) == (5, 8)
        assert statement.targets == ("out", "self.state")
        assert statement.calls == ("self.lstm(x, self.state)",)


def test_a_compound_statement_is_its_header_alone(sources):
    assert sources.last_line("train.py", 11) == 13
    assert sources.statement("train.py", 14).opens_block
    assert sources.statement("train.py", 15).text == "loss = criterion(net(x['a']), y).mean()"


def test_a_call_is_quoted_as_the_user_wrote_it(sources):
    assert sources.quote("train.py", 15) == 'criterion(net(x["a"]), y).mean()'
    assert sources.quote("train.py", 16) == "total = a + b"


def test_the_line_that_keeps_a_value_is_found(sources):
    frame = Frame("train.py", 3, "Net.forward", 2)
    assert sources.store_line(frame, frozenset({"norm"})) == 4
    assert sources.store_line(frame, frozenset({"other"})) is None


def test_missing_and_broken_sources_say_less_and_do_not_fail(sources):
    for path in ("broken.py", "missing.py"):
        assert sources.statement(path, 1) is None
        assert sources.quote(path, 1) is None
        assert sources.last_line(path, 1) == 1
        assert sources.store_line(Frame(path, 1, "f", 1), frozenset({"x"})) is None
        assert sources.loop_end(path, 1) is None
    assert sources.line("broken.py", 1) == "def (:"
    assert sources.line("missing.py", 1) is None


def test_the_end_of_the_innermost_loop(sources):
    assert sources.loop_end("train.py", 15) == 16
    assert sources.loop_end("train.py", 3) is None


def test_lines_are_counted_as_python_counts_them(build):
    sources = build(Source(path="train.py", text='text = "a\x0cb"\nloss.backward()\n')).sources
    assert sources.line("train.py", 2) == "loss.backward()"


def test_one_of_several_statements_on_a_line_is_picked(build):
    sources = build(Source(path="train.py", text="opt.zero_grad(); loss.backward(); opt.step()\n")).sources
    assert sources.call("train.py", 1, re.compile(r"\.backward\(")) == "loss.backward()"
    assert sources.call("train.py", 1, re.compile(r"\bgrad\(")) is None
    assert sources.call("missing.py", 1, re.compile("x")) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("loss.backward()", "loss"),
        ("self.losses['g'].backward(retain_graph=True)", "self.losses['g']"),
        ("(real_loss + fake_loss).backward()", "real_loss + fake_loss"),
        ("scaler.scale(loss).backward()", "scaler.scale(loss)"),
        ("torch.autograd.backward(a * b)", "a * b"),
        ("grads = torch.autograd.grad(verdict.sum(), images)", "verdict.sum()"),
        ("fabric.backward(loss)", None),
        ("torch.autograd.backward(*losses)", None),
        ("engine.train(batch)", None),
    ],
)
def test_what_a_backward_is_called_on_is_told_by_its_line(build, line, told):
    assert build(Source(path="x.py", text=line)).sources.differentiated("x.py", 1) == told
