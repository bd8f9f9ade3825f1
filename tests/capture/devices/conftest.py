import pytest
import torch

from graphlint.capture.devices import SimulatedDevices


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def gpu():
    """One simulated GPU."""
    with SimulatedDevices(["cuda"]) as devices:
        yield devices


@pytest.fixture
def gpus():
    """Two simulated GPUs."""
    with SimulatedDevices(["cuda", "cuda:1"]) as devices:
        yield devices
