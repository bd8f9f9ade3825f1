import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphlint.capture.devices import SimulatedDevices


def state_on(optimizer):
    return {
        value.device.type
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim()
    }


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    ],
)
def test_optimizers_step_to_the_same_numbers_as_on_the_cpu(gpu, optimizer_class, options):
    def train(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
        optimizer = optimizer_class(net.parameters(), lr=0.01, **options)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 3, device=device)).pow(2).sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        assert state_on(optimizer) <= {torch.device(device).type}
        again = optimizer_class(net.parameters(), lr=0.01, **options)
        again.load_state_dict(optimizer.state_dict())
        again.step()
        return nn.utils.parameters_to_vector(net.parameters()).tolist()

    assert train("cuda") == train("cpu")


def test_clipping_over_two_devices(gpus):
    parameters = [nn.Parameter(torch.ones(2, device=place)) for place in ("cuda", "cuda:1", "cpu")]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    total = nn.utils.clip_grad_norm_(parameters, 1.0)
    assert total.device == torch.device("cuda:0")
    assert total.item() == pytest.approx(24**0.5)
    assert [str(parameter.grad.device) for parameter in parameters] == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loaders_pin_and_stay_on_the_host(gpu, workers):
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    for values, numbers in loader:
        assert values.is_pinned()
        assert numbers.device.type == "cpu"
        with pytest.raises(RuntimeError, match="same device"):
            values + torch.ones(4, device="cuda")
        assert values.to("cuda", non_blocking=True).is_cuda


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
        lambda: nn.GRU(3, 4, batch_first=True),
        lambda: nn.RNN(3, 4, batch_first=True),
    ],
)
def test_recurrent_layers(gpu, make):
    layer = make().cuda()
    output, _ = layer(torch.randn(2, 5, 3, device="cuda"))
    output.sum().backward()
    assert output.is_cuda
    assert all(parameter.grad.is_cuda for parameter in layer.parameters())


def test_recurrent_layers_want_state_and_weights_where_the_input_is(gpu):
    layer, given = nn.LSTM(3, 4).cuda(), torch.ones(2, 1, 3, device="cuda")
    with pytest.raises(RuntimeError, match=r"Input and hidden tensors .* at cuda:0 and hidden tensor at cpu"):
        layer(given, (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)))
    with pytest.raises(
        RuntimeError, match=r"Input and parameter tensors .* at cpu and parameter tensor at cuda:0"
    ):
        layer(given.cpu())
    with pytest.raises(RuntimeError, match="Input and hidden tensors"):
        nn.GRU(3, 4).cuda()(given, torch.zeros(1, 1, 4))
    output, _ = nn.GRU(3, 4).cuda()(given, torch.zeros(1, 1, 4, device="cuda"))
    assert output.is_cuda


def test_layers(gpu):
    image = torch.randn(2, 3, 8, 8, device="cuda")
    assert (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).cuda()(image).is_cuda
    )
    assert nn.ConvTranspose2d(3, 2, 2).cuda()(image).is_cuda
    assert nn.Embedding(5, 3).cuda()(torch.tensor([1, 4], device="cuda")).is_cuda
    assert nn.LayerNorm(8).cuda()(image).is_cuda
    assert nn.utils.spectral_norm(nn.Linear(8, 2)).cuda()(image).is_cuda
    assert nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)).cuda()(image).is_cuda
    assert F.interpolate(image, scale_factor=2).is_cuda
    assert F.gumbel_softmax(image).is_cuda
    assert torch.einsum("bchw,bchv->bwv", image, image).is_cuda
    assert torch.distributions.Normal(torch.zeros(2, device="cuda"), 1.0).rsample().is_cuda
    assert all(part.is_cuda for part in image.topk(2))
    assert all(part.is_cuda for part in torch.meshgrid(image[0, 0, 0], image[0, 0, 1], indexing="ij"))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_transformer_and_its_fast_path(gpu, training):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).train(training)
    given, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.set_grad_enabled(training):
        expected = encoder(given, src_key_padding_mask=mask)
        found = encoder.cuda()(given.cuda(), src_key_padding_mask=mask.cuda())
    assert found.is_cuda
    assert torch.equal(found.cpu(), expected)


def test_sparse_tensors(gpu):
    dense = torch.eye(3, device="cuda")
    sparse = dense.to_sparse()
    assert sparse.is_cuda
    assert sparse.to_dense().is_cuda
    assert sparse.coalesce().values().is_cuda
    assert torch.sparse.mm(sparse, dense).is_cuda
    assert sparse.cpu().device.type == "cpu"
    assert sparse.cpu().cuda().is_cuda
    with pytest.raises(RuntimeError, match="same device"):
        sparse @ dense.cpu()
    layer = nn.Embedding(4, 3, sparse=True).cuda()
    layer(torch.tensor([1], device="cuda")).sum().backward()
    assert layer.weight.grad.is_cuda
    torch.optim.SparseAdam(list(layer.parameters())).step()


def test_complex_tensors(gpu):
    spectrum = torch.fft.fft(torch.randn(4, device="cuda"))
    assert spectrum.is_cuda
    assert spectrum.real.is_cuda
    assert torch.view_as_real(spectrum).is_cuda
    assert torch.complex(spectrum.real, spectrum.imag).is_cuda
    assert spectrum.conj().is_cuda
    assert torch.fft.ifft(spectrum).is_cuda


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_compiled_code_runs_as_written(gpu):
    net = torch.compile(nn.Linear(3, 2).cuda(), mode="reduce-overhead")

    @torch.compile
    def twice(given):
        return given * 2

    @torch.compile(dynamic=True)
    def thrice(given):
        return given * 3

    assert thrice(twice(net(torch.ones(1, 3, device="cuda")))).is_cuda
    assert set(net.state_dict()) == {"_orig_mod.weight", "_orig_mod.bias"}


def test_code_compiled_before_the_block_runs_inside_and_after():
    compiled = torch.compile(lambda given: given * 2, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    with SimulatedDevices(["cuda"]):
        assert compiled(torch.ones(2, device="cuda")).is_cuda
    assert compiled(torch.ones(3)).tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_code_answers_with_labels(gpu):
    scripted = torch.jit.script(nn.Linear(3, 2)).cuda()
    traced = torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)).to("cuda")
    given = torch.ones(1, 3, device="cuda")
    assert (scripted(given) + traced(given)).is_cuda


@pytest.mark.parametrize("count", [1, 2])
def test_data_parallel(gpus, count):
    torch.manual_seed(0)
    plain = nn.Linear(3, 2).cuda()
    net = nn.DataParallel(plain, device_ids=list(range(count)))
    given = torch.randn(4, 3, device="cuda")
    output = net(given)
    assert output.device == torch.device("cuda:0")
    output.sum().backward()
    gradient, plain.weight.grad = plain.weight.grad, None
    plain(given).sum().backward()
    assert gradient.device == torch.device("cuda:0")
    assert torch.allclose(gradient, plain.weight.grad)


def test_moving_averages_and_swa(gpu):
    net = nn.Linear(2, 2).cuda()
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    assert average.module.weight.is_cuda
    with torch.no_grad():
        average.module.weight.mul_(0.9).add_(net.weight, alpha=0.1)
        torch._foreach_lerp_(list(average.module.parameters()), list(net.parameters()), 0.5)
    assert average.module.weight.is_cuda
