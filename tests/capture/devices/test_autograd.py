import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

GPU = torch.device("cuda", 0)


def test_gradients_are_where_their_tensor_is(gpu):
    host = torch.randn(3, requires_grad=True)
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    middle = host.cuda()
    middle.retain_grad()
    (middle * weight).sum().backward()
    assert (weight.grad.device, middle.grad.device, host.grad.device.type) == (GPU, GPU, "cpu")
    assert (weight.grad * weight).device == GPU


def test_autograd_grad_answers_like_its_inputs(gpu):
    host = torch.randn(3, requires_grad=True)
    there = torch.randn(3, device="cuda", requires_grad=True)
    loss = (host.cuda() * there).pow(2).sum()
    of_host, of_there = torch.autograd.grad(loss, (host, there), create_graph=True)
    assert (of_host.device.type, of_there.device) == ("cpu", GPU)
    penalty = (of_there.norm() - 1) ** 2
    penalty.backward()
    assert there.grad.device == GPU


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given, factor):
        ctx.save_for_backward(given)
        ctx.device = given.device
        ctx.factor = factor
        return given * factor

    @staticmethod
    def backward(ctx, gradient):
        (given,) = ctx.saved_tensors
        ones = torch.ones(given.shape, device=ctx.device)
        assert ones.device == given.device == gradient.device
        Scaled.seen.append(gradient)
        return gradient * ones * ctx.factor, None


def test_custom_functions_see_the_devices_forward_and_backward(gpu):
    Scaled.seen = []
    there = torch.randn(3, device="cuda", requires_grad=True)
    Scaled.apply(there, 2.0).sum().backward()
    assert there.grad.device == GPU
    assert there.grad.tolist() == [2, 2, 2]
    (kept,) = Scaled.seen
    assert (kept * there).device == GPU
    Scaled.seen = []


@pytest.mark.parametrize("call", ["method", "function"])
def test_backward_by_method_and_by_function(gpu, call):
    Scaled.seen = []
    there = torch.randn(3, device="cuda", requires_grad=True)
    loss = Scaled.apply(there, 3.0).sum()
    if call == "method":
        loss.backward()
    else:
        torch.autograd.backward([loss])
    assert there.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_recomputes_on_the_device(gpu, use_reentrant):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, given):
            noise = torch.rand(given.shape, device="cuda")
            return torch.dropout(self.linear(given) + noise, 0.5, train=True)

    block = Block().cuda()
    given = torch.randn(2, 3, device="cuda", requires_grad=True)
    torch.manual_seed(1)
    plain = block(given).sum()
    plain.backward()
    expected, given.grad = given.grad.clone(), None
    torch.manual_seed(1)
    checkpoint(block, given, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(given.grad, expected)
    assert given.grad.device == GPU


def test_saved_tensor_hooks_see_the_devices(gpu):
    given = torch.randn(3, device="cuda", requires_grad=True)
    seen = []

    def pack(tensor):
        seen.append(tensor.device)
        return tensor.device, tensor.cpu()

    def unpack(packed):
        device, tensor = packed
        return tensor.to(device)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = (given.exp() * given).sum()
    loss.backward()
    assert set(seen) == {GPU}
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = (given.sigmoid() * given).sum()
    loss.backward()
    assert given.grad.device == GPU


def test_hooks_get_labelled_gradients(gpu):
    given = torch.randn(2, 3, device="cuda", requires_grad=True)
    net = nn.Linear(3, 2).cuda()
    kept = []
    middle = given * 2
    handle = middle.register_hook(kept.append)
    net.register_full_backward_hook(lambda module, into, out: kept.extend([into[0], out[0]]))
    net.weight.register_post_accumulate_grad_hook(lambda parameter: kept.append(parameter.grad))
    net(middle).sum().backward()
    assert len(kept) == 4
    assert {gradient.device for gradient in kept} == {GPU}
    assert (kept[0] + given).device == GPU
    handle.remove()
    net(given * 2).sum().backward()


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_old_module_hooks_get_gradients_that_mix(gpu):
    given = torch.randn(2, 3, device="cuda", requires_grad=True)
    net = nn.Linear(3, 2).cuda()
    kept = []
    net.register_backward_hook(lambda module, into, out: kept.extend(out))
    output = net(given)
    output.sum().backward()
    assert (kept[0] * output).device == GPU


def test_functional_transforms(gpu):
    given = torch.randn(3, device="cuda")
    assert torch.func.grad(lambda x: (x**2).sum())(given).device == GPU
    assert torch.func.vmap(lambda x: x * 2)(given).device == GPU
    assert torch.func.jacrev(lambda x: x * given)(given).device == GPU
    assert torch.autograd.functional.jacobian(lambda x: x * 2, given).device == GPU


def test_no_grad_and_inference_mode(gpu):
    given = torch.randn(3, device="cuda", requires_grad=True)
    with torch.no_grad():
        assert (given * 2).cpu().grad_fn is None
        assert (given * 2).device == GPU
    with torch.inference_mode():
        assert (given * 2).device == GPU
        assert (given * 2).to("cpu").is_inference()
