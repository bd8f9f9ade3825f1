"""Names are those that the user's frames hold."""

import subprocess
import sys

import torch
from torch import nn

from graphlint.record.events import Op

COUNTER = nn.Linear(2, 2)


def test_locals_and_arguments(record, names) -> None:
    def work(images):
        doubled = images * 2
        return doubled + 1

    trace = record(lambda: work(torch.ones(2)))
    found = names(trace, "tensor")
    assert {"images", "doubled"} <= found.keys()
    scopes = {name.scope.rpartition(".")[2] for name in trace.names if name.name in {"images", "doubled"}}
    assert scopes == {"work"}


def test_attributes_of_any_self(record, names) -> None:
    class Trainer:
        def __init__(this) -> None:  # noqa: N805
            this.net = nn.Linear(2, 1)
            this.optimizer = torch.optim.SGD(this.net.parameters(), 0.1)
            this.buffers = {"mean": torch.zeros(2)}
            this.seen = torch.zeros(1)

        def step(this) -> None:  # noqa: N805
            this.seen = this.seen + this.buffers["mean"].sum()
            this.net(torch.ones(1, 2)).sum().backward()
            this.optimizer.step()

    trainer = Trainer()
    trace = record(lambda: (trainer.step(), trainer.step()))
    assert "this.net" in names(trace, "module")
    assert "this.optimizer" in names(trace, "optimizer")
    assert "this.seen" in names(trace, "tensor")
    assert "this.buffers['mean']" in names(trace, "tensor")


def test_items_of_containers(record, names) -> None:
    def work() -> None:
        nets = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}
        layers = [nn.Linear(1, 1)]
        optimizers = (
            torch.optim.SGD(nets["g"].parameters(), 0.1),
            torch.optim.SGD(nets["d"].parameters(), 0.1),
        )
        layers[0](nets["d"](nets["g"](torch.ones(1, 2)))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    trace = record(work)
    assert {"nets['g']", "nets['d']", "layers[0]"} <= names(trace, "module").keys()
    assert {"optimizers[0]", "optimizers[1]"} <= names(trace, "optimizer").keys()


def test_globals_are_named_where_the_script_itself_runs(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from graphlint.capture.options import CaptureOptions\n"
        "from graphlint.capture.session import Session\n"
        "session = Session(CaptureOptions(level='full'))\n"
        "with session:\n"
        "    net = torch.nn.Linear(2, 1)\n"
        "    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "    noise = torch.ones(1, 2)\n"
        "    loss = net(noise).sum()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "print(sorted({(name.of, name.name, name.scope) for name in session.trace().names}))\n",
        "utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    for row in (("module", "net"), ("optimizer", "optimizer"), ("tensor", "noise"), ("tensor", "loss")):
        assert repr((*row, "<module>")) in done.stdout


def test_parameters_lie_under_the_root_that_the_user_named(record, names) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
            self.out = nn.Linear(3, 1)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return self.out(self.body(x)) * self.scale

    def work() -> None:
        generator = Net()
        generator(torch.ones(1, 2))

    trace = record(work)
    (root,) = names(trace, "module")["generator"]
    places = {
        ".".join(filter(None, (trace.modules[row.module].path, row.name)))
        for row in trace.parameters
        if trace.modules[row.module].root == root
    }
    assert places == {"body.0.weight", "body.0.bias", "out.weight", "out.bias", "scale"}


def test_a_module_met_before_it_was_complete_ends_under_its_root(record, names) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            nn.init.zeros_(self.first.weight)
            self.first(torch.ones(1, 2))
            self.second = nn.Linear(2, 1)

        def forward(self, x):
            return self.second(self.first(x))

    def work() -> None:
        net = Net()
        net(torch.ones(1, 2))

    trace = record(work)
    (root,) = names(trace, "module")["net"]
    paths = {module.path for module in trace.modules.values() if module.root == root}
    assert {"", "first", "second"} <= paths
    owners = {(trace.modules[row.module].path, trace.modules[row.module].root) for row in trace.parameters}
    assert owners == {("first", root), ("second", root)}


def test_a_layer_that_is_replaced_later_gets_a_place(record, names) -> None:
    def work() -> None:
        net = nn.Sequential(nn.Linear(2, 2))
        net(torch.ones(1, 2))
        net[0] = nn.Linear(2, 3)
        net(torch.ones(1, 2))

    trace = record(work)
    (root,) = names(trace, "module")["net"]
    held = [trace.tensors[row.tensor].shape for row in trace.parameters if row.name == "weight"]
    assert held == [(2, 2), (3, 2)]
    assert all(trace.modules[row.module].root == root for row in trace.parameters)


def test_tensors_of_a_function_of_one_line_are_named_in_each_step(record, names, events) -> None:
    def scale(images):
        return images * 2

    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)

    def work() -> None:
        for _ in range(3):
            scale(weight + 1).sum().backward()
            optimizer.step()

    trace = record(work)
    added = [event.outputs[0] for event in events(trace, Op) if event.name == "torch.Tensor.add"]
    assert len(added) == 3
    assert set(added) <= names(trace, "tensor")["images"]


def test_properties_of_the_user_are_not_run(record) -> None:
    ran = []

    class Holder:
        def __init__(self) -> None:
            self.x = torch.ones(1)

        @property
        def costly(self):
            ran.append(1)
            return self.x

        def work(self):
            return self.x * 2

    record(Holder().work)
    assert ran == []
