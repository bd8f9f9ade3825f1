import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import nn

SAME = "Expected all tensors to be on the same device"


@pytest.mark.parametrize(
    "compute",
    [
        lambda gpu, cpu: gpu + cpu,
        lambda gpu, cpu: cpu * gpu,
        lambda gpu, cpu: gpu.add_(cpu),
        lambda gpu, cpu: cpu.sub_(gpu),
        lambda gpu, cpu: gpu == cpu,
        lambda gpu, cpu: gpu @ cpu,
        lambda gpu, cpu: torch.where(gpu > 0, gpu, cpu),
        F.mse_loss,
        lambda gpu, cpu: F.linear(cpu, gpu),
        lambda gpu, cpu: torch.cat([gpu, cpu]),
        lambda gpu, cpu: torch.stack([gpu, cpu]),
        lambda gpu, cpu: torch.einsum("ij,jk->ik", gpu, cpu),
        lambda gpu, cpu: torch.add(gpu, gpu, out=cpu),
        lambda gpu, cpu: gpu.masked_select(cpu > 0),
        lambda gpu, cpu: torch.tensor(0.0).add_(gpu.sum()),
        lambda gpu, cpu: gpu.sum() * cpu,
    ],
)
def test_mixing_raises_torchs_error(gpu, compute):
    with pytest.raises(RuntimeError, match=SAME):
        compute(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


@pytest.mark.parametrize(
    "compute",
    [
        lambda gpu, cpu: gpu + cpu.sum(),
        lambda gpu, cpu: gpu * torch.tensor(2.0),
        lambda gpu, cpu: torch.where(gpu > 0, gpu, torch.tensor(0.0)),
        lambda gpu, cpu: gpu.clamp(min=torch.tensor(0.0)),
        lambda gpu, cpu: gpu.lerp(gpu, torch.tensor(0.5)),
        lambda gpu, cpu: gpu.copy_(cpu),
        lambda gpu, cpu: gpu.expand_as(cpu),
        lambda gpu, cpu: gpu.view_as(cpu),
        lambda gpu, cpu: gpu.masked_fill(gpu > 0, torch.tensor(1.0)),
        lambda gpu, cpu: gpu[torch.tensor([0])],
        lambda gpu, cpu: gpu[cpu > 0],
        lambda gpu, cpu: gpu[:, torch.tensor(0)],
        lambda gpu, cpu: gpu.index_put((torch.tensor([0]),), torch.tensor(1.0)),
        lambda gpu, cpu: gpu.sum() + torch.tensor(1.0),
    ],
)
def test_what_a_gpu_allows_is_allowed(gpu, compute):
    assert compute(torch.ones(2, 2, device="cuda"), torch.ones(2, 2)).is_cuda


def test_copies_go_anywhere(gpu):
    host, there = torch.zeros(2), torch.ones(2, device="cuda")
    host.copy_(there)
    assert (host.tolist(), host.device.type) == ([1, 1], "cpu")
    there[0] = torch.tensor(3.0)
    there[:2] = torch.full((2,), 4.0)
    there[there > 0] = 5.0
    there[torch.tensor([0])] = torch.tensor(6.0)
    host[:] = there
    assert host.tolist() == [6, 5]
    assert host.device.type == "cpu"
    host.set_(there)
    assert host.device == there.device


def test_index_rules(gpus):
    host = torch.arange(3.0)
    first = torch.tensor([0], device="cuda")
    with pytest.raises(RuntimeError, match=re.escape("same device as the indexed tensor (cpu)")):
        host[first]
    with pytest.raises(RuntimeError, match=re.escape("same device as the indexed tensor (cuda:1)")):
        host.to("cuda:1")[first]
    with pytest.raises(RuntimeError, match=re.escape("same device as the indexed tensor (cpu)")):
        host[first] = 1.0
    with pytest.raises(RuntimeError, match=SAME):
        host.cuda()[torch.tensor([0, 1])] = torch.ones(2)
    assert host[torch.tensor(2, device="cuda")] == 2


def test_two_gpus_are_two_devices(gpus):
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        torch.ones(2, device="cuda") + torch.ones(2, device="cuda:1")


def test_elementwise_wording(gpu):
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) + torch.ones(2, device="cuda")
    assert str(caught.value) == f"{SAME}, but found at least two devices, cuda:0 and cpu!"


@pytest.mark.parametrize(
    ("compute", "method", "argument"),
    [
        (lambda: nn.Linear(2, 2).cuda()(torch.ones(1, 2)), "addmm", "mat1"),
        (lambda: nn.Linear(2, 2)(torch.ones(1, 2, device="cuda")), "addmm", "mat1"),
        (lambda: nn.Linear(2, 2, bias=False).cuda()(torch.ones(1, 2)), "mm", "mat2"),
        (lambda: torch.ones(2, 2).mm(torch.ones(2, 2, device="cuda")), "mm", "mat2"),
        (lambda: torch.ones(1, 2, 2).bmm(torch.ones(1, 2, 2, device="cuda")), "bmm", "mat2"),
        (lambda: nn.Embedding(2, 2).cuda()(torch.tensor([0])), "_index_select", "index"),
        (lambda: torch.ones(2).cuda().index_select(0, torch.tensor([0])), "_index_select", "index"),
        (lambda: torch.ones(2).cuda().gather(0, torch.tensor([0])), "gather", "index"),
        (lambda: torch.cat([torch.ones(2).cuda(), torch.ones(2)]), "cat", "tensors"),
        (lambda: F.cross_entropy(torch.ones(1, 2).cuda(), torch.tensor([0])), "nll_loss_forward", "target"),
    ],
)
def test_checked_methods_name_the_argument(gpu, compute, method, argument):
    with pytest.raises(RuntimeError, match=SAME) as caught:
        compute()
    assert f"in method wrapper_CUDA_{method})" in str(caught.value)
    assert f" {argument} " in str(caught.value)


def test_convolution_wording(gpu):
    with pytest.raises(RuntimeError) as caught:
        nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2))
    assert str(caught.value) == (
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or "
        "input should be a MKLDNN tensor and weight is a dense tensor"
    )
    with pytest.raises(RuntimeError) as caught:
        nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2, device="cuda"))
    assert str(caught.value) == (
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same"
    )


def test_values_leave_for_the_host_by_item_but_not_by_numpy(gpu):
    numpy = pytest.importorskip("numpy")
    tensor = torch.ones(2, device="cuda")
    text = (
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
        "host memory first."
    )
    for convert in (tensor.numpy, lambda: numpy.asarray(tensor), lambda: numpy.mean([tensor, tensor])):
        with pytest.raises(TypeError) as caught:
            convert()
        assert str(caught.value) == text
    assert tensor.cpu().numpy().tolist() == tensor.numpy(force=True).tolist() == tensor.tolist() == [1, 1]
    assert (tensor.sum().item(), float(tensor[0]), int(tensor[0]), bool(tensor[0])) == (2, 1, 1, True)


def test_packed_lengths_belong_on_the_host(gpu):
    batch = torch.randn(2, 3, 4, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(batch, torch.tensor([3, 2]), batch_first=True)
    assert packed.data.is_cuda
    assert packed.batch_sizes.device.type == "cpu"
    output, _ = nn.LSTM(4, 5, batch_first=True).cuda()(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    assert padded.is_cuda
    assert lengths.device.type == "cpu"
    with pytest.raises(
        RuntimeError, match="'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda"
    ):
        nn.utils.rnn.pack_padded_sequence(batch, torch.tensor([3, 2], device="cuda"), batch_first=True)


def test_printing_shows_the_device(gpu):
    tensor = torch.ones(2, device="cuda", requires_grad=True)
    assert repr(tensor) == "tensor([1., 1.], device='cuda:0', requires_grad=True)"
    assert f"{tensor * 2}" == "tensor([2., 2.], device='cuda:0', grad_fn=<MulBackward0>)"
    assert f"{tensor.detach().sum():.1f}" == "2.0"
    assert repr(nn.Parameter(torch.ones(1, device="cuda"))) == (
        "Parameter containing:\ntensor([1.], device='cuda:0', requires_grad=True)"
    )
    assert repr(torch.ones(1)) == "tensor([1.])"


def test_questions_about_the_device(gpu):
    tensor, host = torch.ones(1, device="cuda"), torch.ones(1)
    assert (tensor.device, tensor.is_cuda, tensor.is_cpu, tensor.get_device()) == (
        torch.device("cuda:0"),
        True,
        False,
        0,
    )
    assert (host.device, host.is_cuda, host.is_cpu, host.get_device()) == (
        torch.device("cpu"),
        False,
        True,
        -1,
    )
    assert torch.get_device(tensor) == 0
