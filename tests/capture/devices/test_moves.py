import copy

import pytest
import torch
from torch import nn


def device(index=0):
    return torch.device("cuda", index)


def test_a_move_is_a_real_copy_and_builds_the_node_of_a_move(gpu):
    host = torch.randn(3, requires_grad=True)
    moved = host.to("cuda")
    assert moved.grad_fn.name() == "ToCopyBackward0"
    assert moved.device == device()
    assert gpu.label(moved) == "cuda:0"
    assert gpu.label(host) == "cpu"
    assert moved.untyped_storage().data_ptr() != host.untyped_storage().data_ptr()
    back = moved.cpu()
    assert back.grad_fn.name() == "ToCopyBackward0"
    assert torch.equal(back, host)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.to("cuda"),
        lambda x: x.to("cuda:0"),
        lambda x: x.to(0),
        lambda x: x.to(torch.device("cuda")),
        lambda x: x.to(device="cuda", dtype=torch.float32),
        lambda x: x.to("cuda", torch.float32, True),  # noqa: FBT003
        lambda x: x.to("cuda", non_blocking=True),
        lambda x: x.to(x),
        lambda x: x.to(torch.float32),
        lambda x: x.cuda(),
        lambda x: x.cuda(0),
        lambda x: x.cuda(device="cuda", non_blocking=True),
        lambda x: x.type("torch.cuda.FloatTensor"),
        lambda x: x.type_as(torch.ones(1, device="cuda")),
        lambda x: torch.as_tensor(x, device="cuda"),
    ],
)
def test_a_move_to_where_it_is_returns_the_same_object(gpu, move):
    tensor = torch.randn(3, device="cuda", requires_grad=True)
    assert move(tensor) is tensor
    assert torch.randn(3).cpu().to("cpu").grad_fn is None


def test_copy_and_dtype_are_honoured(gpu):
    tensor = torch.ones(3, device="cuda")
    copied = tensor.to("cuda", copy=True)
    assert copied is not tensor
    assert copied.device == device()
    double = tensor.to(torch.float64)
    assert (double.dtype, double.device) == (torch.float64, device())
    both = torch.ones(3).to(double)
    assert (both.dtype, both.device) == (torch.float64, device())
    assert torch.ones(3).to("cuda", torch.float16).dtype is torch.float16
    assert tensor.half().device == tensor.double().device == device()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.randn(2, device=torch.device("cuda")),
        lambda: torch.empty(2, device=0),
        lambda: torch.arange(2, device="cuda:0"),
        lambda: torch.tensor([1.0, 2.0], device="cuda"),
        lambda: torch.as_tensor([1.0, 2.0], device="cuda"),
        lambda: torch.full((2,), 1.0, device="cuda"),
        lambda: torch.zeros_like(torch.ones(2), device="cuda"),
        lambda: torch.ones_like(torch.ones(2, device="cuda")),
        lambda: torch.rand_like(torch.ones(2, device="cuda")),
        lambda: torch.ones(2, device="cuda").new_zeros(2),
        lambda: torch.ones(2, device="cuda").new_tensor([1.0, 2.0]),
        lambda: torch.ones(2, device="cuda").new(2),
        lambda: torch.ones(2).new_ones(2, device="cuda"),
        lambda: torch.tensor(torch.ones(2, device="cuda").tolist(), device="cuda"),
        lambda: nn.Linear(1, 2, device="cuda").bias,
        lambda: torch.cuda.FloatTensor(2),
        lambda: torch.cuda.FloatTensor([1, 2]),
        lambda: torch.ones(2).type(torch.cuda.FloatTensor),
        lambda: torch.ones(2).type("torch.cuda.DoubleTensor"),
        lambda: torch.nested.nested_tensor([torch.ones(2)], device="cuda"),
        lambda: torch.from_dlpack(torch.ones(2, device="cuda")),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_factories_make_what_they_are_told(gpu, make):
    made = make()
    assert made.is_cuda
    assert gpu.label(made) == "cuda:0"


def test_data_given_as_numbers_stays_on_the_host(gpu):
    scalars = [torch.tensor(1.0, device="cuda"), torch.tensor(2.0, device="cuda")]
    assert torch.tensor(scalars).device.type == "cpu"
    assert torch.zeros_like(scalars[0], device="cpu").device.type == "cpu"
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(2, dtype=numpy.float32)
    assert torch.from_numpy(array).device.type == "cpu"
    assert torch.as_tensor(array).device.type == "cpu"
    on_gpu = torch.as_tensor(array, device="cuda")
    array[0] = 5
    assert on_gpu.tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_tensor_of_a_tensor_stays_where_it_was(gpu):
    assert torch.tensor(torch.ones(2, device="cuda")).is_cuda


def test_module_moves_keep_the_parameter_and_change_its_label(gpu):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    parameters = list(module.parameters())
    assert module.to("cuda") is module
    assert all(new is old for new, old in zip(module.parameters(), parameters, strict=True))
    assert {tensor.device for tensor in module.state_dict().values()} == {device()}
    storage = parameters[0].data_ptr()
    module.cuda()
    assert parameters[0].data_ptr() == storage
    module.cpu()
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"cpu"}
    module.to(0)
    assert parameters[0].is_cuda
    module.to(torch.ones(1))
    assert not parameters[0].is_cuda
    module.to(torch.ones(1, device="cuda"))
    assert parameters[0].is_cuda
    module.to("cpu")
    module.to(device=torch.device("cuda"), dtype=torch.float64)
    assert parameters[0].is_cuda
    assert parameters[0].dtype is torch.float64


def test_deepcopy_stays_on_the_device(gpu):
    module = nn.Linear(2, 2).cuda()
    copied = copy.deepcopy(module)
    assert copied.weight.is_cuda
    assert copy.deepcopy({"x": torch.ones(2, device="cuda"), "y": torch.ones(2)})["y"].device.type == "cpu"


def test_assigning_data_moves_a_parameter(gpu):
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = parameter.data.cuda()
    assert parameter.is_cuda
    parameter.data = torch.ones(2)
    assert not parameter.is_cuda


def test_meta_tensors_pass(gpu):
    assert torch.ones(2, device="meta").device.type == "meta"
    assert torch.ones(2, device="cuda").to("meta").device.type == "meta"
    assert nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight.is_cuda


def test_default_devices(gpus):
    torch.set_default_device("cuda")
    assert torch.ones(2).device == nn.Linear(2, 2).weight.device == device()
    assert torch.get_default_device() == device()
    assert torch.ones(2, device="cpu").device.type == "cpu"
    assert torch.nn.functional.interpolate(torch.ones(1, 1, 2, 2), scale_factor=2).is_cuda
    with torch.device("cuda:1"):
        assert torch.ones(2).device == device(1)
    torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"
    with torch.device("cuda:1"):
        torch.cuda.set_device(0)
        assert torch.ones(2).device == torch.get_default_device() == device(1)
        with torch.device("cpu"):
            assert torch.ones(2).device.type == "cpu"
        with torch.device("meta"):
            assert torch.ones(2).device.type == "meta"
    assert torch.ones(2).device.type == "cpu"


def test_default_device_changed_inside_does_not_outlive_the_block():
    from graphlint.capture.devices import SimulatedDevices

    with SimulatedDevices(["cuda"]):
        torch.set_default_device("cuda")
    assert torch.get_default_device().type == "cpu"
    assert torch.ones(2).device.type == "cpu"


def test_default_device_set_before_stays():
    from graphlint.capture.devices import SimulatedDevices

    torch.set_default_device("cpu")
    try:
        with SimulatedDevices(["cuda"]) as devices:
            assert devices.label(torch.ones(2)) == "cpu"
            torch.set_default_device("cuda")
            assert devices.label(torch.ones(2)) == "cuda:0"
        assert torch.get_default_device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_default_tensor_type(gpu):
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.ones(2).is_cuda
    torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.ones(2).is_cuda


def test_old_types_answer_isinstance_and_names(gpu):
    tensor = torch.ones(2, device="cuda")
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.cpu().type() == "torch.FloatTensor"
    assert isinstance(tensor, torch.cuda.FloatTensor)
    assert not isinstance(tensor.cpu(), torch.cuda.FloatTensor)
    assert not isinstance(tensor, torch.cuda.LongTensor)
    assert tensor.type(torch.FloatTensor).device.type == "cpu"
    assert tensor.type(torch.float64).is_cuda


def test_pinned_memory(gpu):
    host = torch.ones(2)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert not host.is_pinned()
    assert pinned.device.type == "cpu"
    assert (pinned + 1).device.type == "cpu"
    assert not (pinned + 1).is_pinned()
    assert pinned.to("cuda", non_blocking=True).is_cuda
    assert torch.empty(2, pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        pinned.cuda().pin_memory()
