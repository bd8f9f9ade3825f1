"""What graphlint believes about optimizers, their hooks and zero_grad."""

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

OPTIMIZERS = {
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "SGD loop": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam loop": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "SGD at rate 0": lambda p: torch.optim.SGD(p, lr=0.0),
}


def parameter() -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    return p


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_raises_the_version_of_a_parameter_with_a_gradient(name):
    p = parameter()
    optimizer = OPTIMIZERS[name]([p])
    before = p._version
    optimizer.step()
    assert p._version > before


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_step_changes_a_parameter_and_leaves_its_version(kind):
    p = parameter()
    optimizer = kind([p], lr=0.1, fused=True)
    before = p._version
    optimizer.step()
    assert not torch.equal(p, torch.ones(3))
    assert p._version == before


def test_backward_after_a_fused_step_is_wrong_without_an_error():
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, fused=True)
    x = torch.ones(1, 1, requires_grad=True)
    loss = layer(x).sum()
    loss.backward(retain_graph=True)
    right = x.grad.clone()
    optimizer.step()
    x.grad = None
    loss.backward()
    assert not torch.equal(x.grad, right)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_leaves_a_parameter_without_a_gradient_alone(name):
    p, idle = parameter(), torch.nn.Parameter(torch.ones(3))
    optimizer = OPTIMIZERS[name]([p, idle])
    before = idle._version
    optimizer.step()
    assert idle._version == before


def test_lbfgs_steps_through_its_closure():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([p], max_iter=3)
    closures = 0

    def closure():
        nonlocal closures
        closures += 1
        optimizer.zero_grad()
        loss = ((p - 2) ** 2).sum()
        loss.backward()
        return loss

    before = p._version
    optimizer.step(closure)
    assert closures > 1
    assert p._version > before


def test_global_hooks_surround_the_step_of_every_optimizer():
    order = []
    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: order.append("before")),
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: order.append("after")),
    ]
    try:
        torch.optim.SGD([parameter()], lr=0.1).step()
    finally:
        for handle in handles:
            handle.remove()
    torch.optim.SGD([parameter()], lr=0.1).step()
    assert order == ["before", "after"]


def test_post_hook_is_not_called_when_the_step_raises():
    order = []
    handle = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: order.append("after"))
    try:
        optimizer = torch.optim.SGD([parameter()], lr=0.1)

        def closure():
            raise KeyError

        with pytest.raises(KeyError):
            optimizer.step(closure)
    finally:
        handle.remove()
    assert order == []


def test_global_module_hooks_see_every_call_and_leave_no_trace():
    calls = []
    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: calls.append("in")),
        torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: calls.append("out")),
    ]
    try:
        torch.nn.Sequential(torch.nn.ReLU())(torch.ones(3))
    finally:
        for handle in handles:
            handle.remove()
    torch.nn.ReLU()(torch.ones(3))
    assert calls == ["in", "in", "out", "out"]


def test_zero_grad_has_no_hook_and_may_be_overridden():
    class Loud(torch.optim.SGD):
        def zero_grad(self, **options):
            super().zero_grad(**options)

    assert Loud.zero_grad is not torch.optim.Optimizer.zero_grad
    assert "hook" not in " ".join(torch.optim.Optimizer.zero_grad.__code__.co_names).replace(
        "_zero_grad_profile_name", ""
    )


def test_module_zero_grad_does_not_go_through_an_optimizer():
    names = torch.nn.Module.zero_grad.__code__.co_names
    assert "parameters" in names
    assert "Optimizer" not in names


def test_zero_grad_sets_to_none_by_default():
    p = parameter()
    torch.optim.SGD([p], lr=0.1).zero_grad()
    assert p.grad is None


def test_zero_grad_in_place_keeps_the_tensor():
    p = parameter()
    gradient = p.grad
    torch.optim.SGD([p], lr=0.1).zero_grad(set_to_none=False)
    assert p.grad is gradient
    assert not gradient.any()


def test_scaler_on_the_cpu_skips_the_step_when_a_gradient_overflows():
    p = parameter()
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    p.grad = None
    scaler.scale((p * float("inf")).sum()).backward()
    before = p._version
    scaler.step(optimizer)
    scaler.update()
    assert p._version == before
    assert scaler.get_scale() == 1.0


def test_steps_of_torch_are_patched_per_class_with_the_original_kept():
    torch.optim.SGD([parameter()], lr=0.1)
    assert torch.optim.SGD.step.hooked is True
