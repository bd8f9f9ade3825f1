import importlib
import threading

import pytest
import torch
import torch.autograd.graph
import torch.serialization
import torch.utils.hooks
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from graphlint.capture.devices import SimulatedDevices, simulated
from graphlint.capture.modes import insert_mode, installed_modes, remove_mode
from graphlint.errors import UsageError


def everything_patched():
    owners = [
        torch,
        torch.Tensor,
        torch.cuda,
        torch.cuda.random,
        torch.cuda.memory,
        torch.cuda.nvtx,
        torch.autograd,
        torch.autograd.graph,
        torch.autograd.graph.saved_tensors_hooks,
        torch.serialization,
        torch.nested,
        torch.nn.parallel.comm,
        torch.nn.utils.clip_grad,
        torch.optim.swa_utils,
        torch.backends.cuda,
        torch.backends.cudnn,
        torch.utils.dlpack,
        torch.utils._foreach_utils,
        torch.utils.hooks.BackwardHook,
        torch.nn.modules.module._WrappedHook,
        torch._C.ScriptFunction,
        torch._C.ScriptMethod,
        BackwardCFunction,
        DeviceContext,
        threading.Thread,
        importlib.import_module("torch.optim.optimizer"),
        getattr(torch, "accelerator", torch),
    ]
    return [dict(vars(owner)) for owner in owners], installed_modes()


class Quiet(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def assert_same(before, after):
    (before_attributes, before_modes), (after_attributes, after_modes) = before, after
    assert before_modes == after_modes
    for old, new in zip(before_attributes, after_attributes, strict=True):
        changed = {name for name in old.keys() | new.keys() if old.get(name) is not new.get(name)}
        assert not changed - {"__annotations__"}


def warm():
    with SimulatedDevices(["cuda"]):
        pass


def test_nothing_remains():
    warm()
    before = everything_patched()
    with SimulatedDevices(["cuda"]):
        assert torch.cuda.is_available()
        nn.Linear(2, 2).cuda()(torch.ones(1, 2, device="cuda")).sum().backward()
        with pytest.raises(AssertionError):
            assert_same(before, everything_patched())
    assert_same(before, everything_patched())
    assert not torch.cuda.is_available()


def fail_half_way():
    torch.set_default_device("cuda")
    raise ValueError("half way")


def test_nothing_remains_after_an_error():
    warm()
    before = everything_patched()
    with pytest.raises(ValueError, match="half way"), SimulatedDevices(["cuda"]):
        fail_half_way()
    assert_same(before, everything_patched())


@pytest.mark.parametrize(
    "step", ["patch_cuda", "patch_checkpoints", "patch_autograd", "patch_library", "insert_mode"]
)
def test_nothing_remains_when_entering_fails(monkeypatch, step):
    warm()
    before = everything_patched()
    real = getattr(simulated, step)

    def failing(*args, **kwargs):
        real(*args, **kwargs)
        raise OSError(step)

    devices = SimulatedDevices(["cuda"])
    monkeypatch.setattr(simulated, step, failing)
    with pytest.raises(OSError, match=step), devices:
        pass
    if step == "insert_mode":
        assert not any(mode is devices.mode for mode in installed_modes())
    assert_same(before, everything_patched())
    monkeypatch.undo()
    with devices:
        assert torch.ones(2, device="cuda").is_cuda
    assert_same(before, everything_patched())


def test_entering_twice_is_refused():
    devices = SimulatedDevices(["cuda"])
    with devices, pytest.raises(UsageError, match="in use"), devices:
        pass
    with devices:
        assert torch.cuda.is_available()


def test_tensors_outlive_the_block_as_plain_tensors():
    with SimulatedDevices(["cuda"]):
        net = nn.Linear(2, 2).cuda()
        loss = net(torch.ones(1, 2, device="cuda")).sum()
    loss.backward()
    assert net.weight.grad.device.type == net.weight.device.type == "cpu"


def test_a_mode_entered_before_stays_above():
    with Quiet() as mine:
        with SimulatedDevices(["cuda"]) as devices:
            assert installed_modes() == [devices.mode, mine]
            assert torch.ones(2, device="cuda").is_cuda
        assert installed_modes() == [mine]


def test_modes_left_above_at_the_end_are_put_back():
    mine = Quiet()
    with SimulatedDevices(["cuda"]):
        mine.__enter__()
    assert installed_modes() == [mine]
    mine.__exit__(None, None, None)
    assert installed_modes() == []


def test_modes_are_inserted_above_those_named_and_below_the_users():
    recorder, user = Quiet(), Quiet()
    torch.set_default_device("cpu")
    try:
        (default,) = installed_modes()
        with SimulatedDevices(["cuda"]) as devices, user:
            insert_mode(recorder, above=(DeviceContext, type(devices.mode)))
            assert installed_modes() == [default, devices.mode, recorder, user]
            assert remove_mode(recorder)
            assert not remove_mode(recorder)
            with torch.device("cuda"):
                insert_mode(recorder, above=(DeviceContext, type(devices.mode)))
                assert installed_modes()[:4] == [default, devices.mode, recorder, user]
            assert installed_modes() == [default, devices.mode, recorder, user]
            torch.set_default_device(None)
            assert installed_modes() == [devices.mode, recorder, user]
            torch.set_default_device("cuda")
            assert installed_modes()[1:] == [devices.mode, recorder, user]
            assert torch.ones(2).is_cuda
            remove_mode(recorder)
    finally:
        torch.set_default_device(None)
    assert installed_modes() == []


def test_a_device_block_around_everything_is_left_alone():
    with torch.device("cpu"):
        outer = installed_modes()
        with SimulatedDevices(["cuda"]) as devices:
            assert installed_modes() == [devices.mode, *outer]
            assert torch.ones(2, device="cuda").is_cuda
        assert installed_modes() == outer
    assert installed_modes() == []


def test_label_inside_a_mode_above():
    labels = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                labels.append((devices.label(result), str(result.device)))
            return result

    with SimulatedDevices(["cuda"]) as devices, Watching():
        torch.ones(2).cuda().add_(1).cpu()
    assert labels == [("cpu", "cpu"), ("cuda:0", "cuda:0"), ("cuda:0", "cuda:0"), ("cpu", "cpu")]


def split_gan(generator_device, discriminator_device):
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6)).to(
        generator_device
    )
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1))
    discriminator.to(discriminator_device)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-2, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    losses = []
    for _ in range(5):
        real = torch.randn(8, 6).to(discriminator_device)
        noise = torch.randn(8, 4, device=generator_device)
        fake = generator(noise).to(discriminator_device)
        optimizer_d.zero_grad()
        ones, zeros = (
            torch.ones(8, 1, device=discriminator_device),
            torch.zeros(8, 1, device=discriminator_device),
        )
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        optimizer_g.step()
        losses += [loss_d.item(), loss_g.item()]
    weights = [
        parameter.detach().cpu() for net in (generator, discriminator) for parameter in net.parameters()
    ]
    return losses, weights, torch.get_rng_state()


@pytest.mark.parametrize(
    "places", [("cuda", "cpu"), ("cpu", "cuda:0"), ("cuda:0", "cuda:1"), ("cuda", "cuda")]
)
def test_a_split_gan_has_the_losses_weights_and_random_state_of_a_cpu_run(places):
    losses, weights, state = split_gan("cpu", "cpu")
    with SimulatedDevices(["cuda", "cuda:1"]):
        found_losses, found_weights, found_state = split_gan(*places)
    assert found_losses == losses
    assert all(torch.equal(found, weight) for found, weight in zip(found_weights, weights, strict=True))
    assert torch.equal(found_state, state)


def train_transformer(device):
    torch.manual_seed(0)
    embedding = nn.Embedding(11, 8).to(device)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 11)).to(
        device
    )
    optimizer = torch.optim.AdamW([*embedding.parameters(), *model.parameters()], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    losses = []
    for _ in range(4):
        tokens = torch.randint(0, 11, (3, 7)).to(device)
        logits = model(embedding(tokens[:, :-1]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_a_transformer_has_the_losses_of_a_cpu_run():
    expected = train_transformer("cpu")
    with SimulatedDevices(["cuda"]):
        assert train_transformer("cuda") == expected


def test_labels_do_not_pile_up(gpu):
    net = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        net(torch.ones(2, 4, device="cuda")).pow(2).mean().backward()
        optimizer.step()
    assert len(gpu.mode.table) < 1200
