import io
import pickle

import pytest
import torch
from torch import nn

from graphlint.capture.devices import SimulatedDevices


def places(loaded):
    return {name: str(tensor.device) for name, tensor in loaded.items()}


@pytest.fixture
def saved(gpus, tmp_path):
    path = tmp_path / "state.pt"
    there = torch.arange(3.0, device="cuda")
    torch.save(
        {"gpu": there, "second": torch.ones(2, device="cuda:1"), "view": there[1:], "cpu": torch.ones(2)},
        path,
    )
    return path


def test_tensors_come_back_to_where_they_were(saved):
    loaded = torch.load(saved)
    assert places(loaded) == {"gpu": "cuda:0", "second": "cuda:1", "view": "cuda:0", "cpu": "cpu"}
    assert loaded["gpu"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="same device"):
        loaded["gpu"] + torch.ones(3)


@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        ("cpu", ("cpu", "cpu", "cpu")),
        (torch.device("cuda", 1), ("cuda:1", "cuda:1", "cuda:1")),
        ("cuda", ("cuda:0", "cuda:0", "cuda:0")),
        ({"cuda:0": "cuda:1"}, ("cuda:1", "cuda:1", "cpu")),
        ({"cuda:1": "cpu"}, ("cuda:0", "cpu", "cpu")),
        (lambda storage, location: storage, ("cpu", "cpu", "cpu")),
        (lambda storage, location: None, ("cuda:0", "cuda:1", "cpu")),
    ],
)
def test_map_location(saved, map_location, expected):
    found = places(torch.load(saved, map_location=map_location))
    assert (found["gpu"], found["second"], found["cpu"]) == expected


def test_map_location_gets_the_places_that_were_saved(saved):
    seen = []
    torch.load(saved, map_location=lambda storage, location: seen.append(location))
    assert seen == ["cuda:0", "cuda:1", "cpu"]


def test_buffers_modules_and_optimizers(gpu):
    net = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    buffer = io.BytesIO()
    torch.save({"net": net, "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert loaded["net"].weight.is_cuda
    fresh = torch.optim.Adam(net.parameters())
    fresh.load_state_dict(loaded["optimizer"])
    assert fresh.state[net.weight]["exp_avg"].is_cuda
    net.load_state_dict(loaded["net"].state_dict())
    cpu_net = nn.Linear(2, 2)
    cpu_net.load_state_dict(net.state_dict())
    assert not cpu_net.weight.is_cuda


def test_an_unknown_file_mixes_with_everything(saved):
    moved = saved.with_suffix(".moved")
    saved.replace(moved)
    loaded = torch.load(moved)
    assert (loaded["gpu"] + torch.ones(3, device="cuda")).is_cuda
    assert (loaded["gpu"] + torch.ones(3)).device.type == "cpu"
    assert loaded["gpu"].cuda().is_cuda
    pickled = pickle.loads(pickle.dumps(torch.ones(2, device="cuda")))  # noqa: S301 (made here)
    assert (pickled + torch.ones(2, device="cuda")).is_cuda


def test_a_checkpoint_loads_on_a_plain_cpu(tmp_path):
    with SimulatedDevices(["cuda"]):
        torch.save(nn.Linear(2, 2).cuda().state_dict(), tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt")
    assert loaded["weight"].device.type == "cpu"
    nn.Linear(2, 2).load_state_dict(loaded)


def test_a_plain_checkpoint_loads_onto_the_gpu(tmp_path):
    torch.save(torch.ones(2), tmp_path / "plain.pt")
    with SimulatedDevices(["cuda"]):
        assert torch.load(tmp_path / "plain.pt", map_location="cuda").is_cuda


def test_a_device_that_is_not_there_is_refused(saved):
    with pytest.raises(RuntimeError, match=r"on CUDA device 5 but torch\.cuda\.device_count\(\) is 2"):
        torch.load(saved, map_location="cuda:5")
