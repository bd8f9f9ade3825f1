"""The line is the user's innermost one, with the user's chain above it."""

import linecache
import sys
import types

import torch
from torch import nn

from graphlint.capture.sites import Sites
from graphlint.record.events import Op
from graphlint.record.tables import Site, Source


def only_op(trace, events, name):
    (event,) = [event for event in events(trace, Op) if event.name == name]
    return trace.sites[event.site]


def test_innermost_line_and_chain(record, events, line_of) -> None:
    def inner(x):
        return x * 2  # inner

    def outer(x):
        return inner(x)  # outer

    site = only_op(record(lambda: outer(torch.ones(1))), events, "torch.Tensor.mul")
    assert site.direct
    assert [frame.line for frame in site.frames[:2]] == [line_of("inner"), line_of("outer")]
    assert [frame.function.rpartition(".")[2] for frame in site.frames[:3]] == ["inner", "outer", "<lambda>"]
    assert site.frames[0].path == __file__
    assert site.frames[0].first_line == line_of("inner") - 1


def test_a_forward_lies_between_the_operation_and_the_loop(record, events, line_of) -> None:
    class Net(nn.Module):
        def forward(self, x):
            return x.tanh()  # forward

    def loop() -> None:
        Net()(torch.ones(1))  # loop

    site = only_op(record(loop), events, "torch.Tensor.tanh")
    assert [frame.line for frame in site.frames[:2]] == [line_of("forward"), line_of("loop")]


def test_a_layer_of_torch_is_seen_at_the_line_that_calls_it(record, events, line_of) -> None:
    layer = nn.Linear(2, 2)

    def loop() -> None:
        layer(torch.ones(1, 2))  # layer

    site = only_op(record(loop), events, "torch.nn.functional.linear")
    assert site.frames[0].line == line_of("layer")


def test_an_installed_package_is_passed_over(record, events, line_of, monkeypatch) -> None:
    package = types.ModuleType("installed")
    roots = Sites(lambda row: None)._roots
    path = roots.packages[0] + "installed.py"
    exec(compile("def work(x):\n    return x * 3\n", path, "exec"), vars(package))  # noqa: S102

    def loop() -> None:
        package.work(torch.ones(1))  # package

    site = only_op(record(loop), events, "torch.Tensor.mul")
    assert site.frames[0].line == line_of("package")
    assert not site.direct


def test_a_package_stands_in_where_no_line_is_the_users() -> None:
    rows = []
    sites = Sites(rows.append)
    path = sites._roots.packages[0] + "installed.py"
    namespace = {"sites": sites}
    exec(compile("def work():\n    return sites.chain(depth=1).site\n", path, "exec"), namespace)  # noqa: S102
    sites._roots.standard = ("",)
    number = namespace["work"]()
    (site,) = [row for row in rows if isinstance(row, Site)]
    assert site.id == number
    assert [frame.path for frame in site.frames] == [path]
    assert not site.direct


def test_code_that_was_typed_in_is_the_users(record, events) -> None:
    def loop() -> None:
        exec("y = x * 5", {"x": torch.ones(1)})  # noqa: S102

    site = only_op(record(loop), events, "torch.Tensor.mul")
    assert site.frames[0].path == "<string>"
    assert site.frames[0].line == 1


def test_lambdas_comprehensions_and_decorators(record, events, line_of) -> None:
    def decorated(function):
        def wrapper(x):
            return function(x)

        return wrapper

    @decorated
    def work(x):
        return x.exp()  # work

    def loop() -> None:
        x = torch.ones(1)
        work(x)
        double = lambda t: t.sin()  # noqa: E731  # lambda
        double(x)
        [t.cos() for t in [x]]  # comprehension

    trace = record(loop)
    lines = {
        name: only_op(trace, events, f"torch.Tensor.{name}").frames[0].line for name in ("exp", "sin", "cos")
    }
    assert lines == {"exp": line_of("work"), "sin": line_of("lambda"), "cos": line_of("comprehension")}


def test_a_line_has_one_number_and_its_source_comes_once(record, events) -> None:
    def loop() -> None:
        x = torch.ones(1)
        for _ in range(3):
            x = x * 2

    trace = record(loop)
    assert len({event.site for event in events(trace, Op) if event.name == "torch.Tensor.mul"}) == 1
    assert trace.sources[__file__] == "".join(linecache.getlines(__file__))


def test_frames_are_limited_and_the_source_of_a_huge_file_is_left_out(tmp_path) -> None:
    rows = []
    sites = Sites(rows.append)

    def deep(count: int):
        return deep(count - 1) if count else sites.chain(depth=1)

    assert len(deep(30).frames) == 8
    huge = tmp_path / "huge.py"
    huge.write_text("# " + "x" * 500_000 + "\n", "utf-8")
    rows.clear()
    sites.embed_source(str(huge))
    sites.embed_source(str(tmp_path / "missing.py"))
    assert [row for row in rows if isinstance(row, Source)] == []


def test_code_of_the_standard_library_is_internal() -> None:
    import json.decoder

    sites = Sites(lambda row: None)
    assert not sites.is_user_code(json.decoder.JSONDecoder.decode.__code__)
    assert not sites.is_user_code(torch.Tensor.backward.__code__)
    assert not sites.is_user_code(Sites.chain.__code__)
    assert sites.is_user_code(sys._getframe().f_code)


def test_the_reference_trainer_is_audited_like_a_users_code() -> None:
    from graphlint.reference.trainer import SplitDeviceGANTrainer

    assert Sites(lambda row: None).is_user_code(SplitDeviceGANTrainer.step.__code__)
