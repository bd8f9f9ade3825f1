import pytest
import torch

from graphlint.capture.devices import SimulatedDevices
from graphlint.capture.devices.machine import Machine, parse_names
from graphlint.errors import UsageError


@pytest.mark.parametrize(
    ("names", "count"),
    [(["cuda"], 1), (["cuda:0"], 1), (["cuda", "cuda:1"], 2), (["cuda:1"], 2), (("cuda:3", "cuda"), 4)],
)
def test_names_count_the_devices(names, count):
    assert parse_names(names) == count


@pytest.mark.parametrize(
    "names", [["cpu"], ["gpu"], ["cuda:"], ["cuda:x"], ["cuda", "mps"], [], ["CUDA"], [""]]
)
def test_a_wrong_name_says_what_is_right(names):
    with pytest.raises(UsageError, match='"cuda:1"') as caught:
        SimulatedDevices(names)
    assert "\n" not in str(caught.value)


def test_device_arguments_mean_what_they_mean_to_torch():
    machine = Machine(2)
    assert machine.name("cuda") == "cuda:0"
    assert machine.name(torch.device("cuda", 1)) == "cuda:1"
    assert machine.name(1) == "cuda:1"
    assert machine.name("cpu") == machine.name(torch.device("cpu", 0)) == "cpu"
    machine.current = 1
    assert machine.name("cuda") == "cuda:1"
    assert machine.index(None) == 1


@pytest.mark.parametrize("device", ["cuda:3", 3, torch.device("cuda", 3)])
def test_a_device_that_is_not_there_raises_torchs_error(gpu, device):
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        torch.ones(2).to(device)
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        torch.ones(2, device=device)


def test_current_device_decides_what_cuda_means(gpus):
    torch.cuda.set_device(1)
    assert torch.ones(2, device="cuda").device == torch.device("cuda:1")
    with torch.cuda.device(0):
        assert torch.ones(2).cuda().device == torch.device("cuda:0")
        assert torch.cuda.current_device() == 0
    assert torch.cuda.current_device() == 1
