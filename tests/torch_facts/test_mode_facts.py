"""What the modes tap and the rules about modes believe about torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional


def test_eval_calls_train_and_train_calls_itself_for_each_part(monkeypatch) -> None:
    seen = []
    original = nn.Module.train

    def train(module, mode=True):  # noqa: FBT002 - as torch declares it
        seen.append((type(module).__name__, mode))
        return original(module, mode)

    monkeypatch.setattr(nn.Module, "train", train)
    nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout(0.1))).eval()
    assert seen == [(name, False) for name in ("Sequential", "Linear", "Sequential", "Dropout")]


def test_the_mode_is_an_attribute_of_the_module_itself() -> None:
    net = nn.Linear(1, 1)
    assert vars(net)["training"] is True
    assert vars(net.eval())["training"] is False


def test_eval_leaves_gradients_on() -> None:
    net = nn.Linear(1, 1).eval()
    assert torch.is_grad_enabled()
    assert net(torch.ones(1, 1)).grad_fn is not None


def test_train_mode_counts_batches_into_the_statistics_without_gradients_too() -> None:
    norm = nn.BatchNorm1d(1)
    with torch.no_grad():
        norm(torch.tensor([[1.0], [3.0]]))
    assert norm.running_mean.item() != 0
    before = norm.running_mean.clone()
    norm.eval()(torch.tensor([[5.0], [7.0]]))
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize(
    "loss", [functional.binary_cross_entropy, functional.cross_entropy, functional.poisson_nll_loss]
)
def test_these_losses_train_through_their_target_and_differ_when_exchanged(loss) -> None:
    data = torch.tensor([[0.2, 0.7, 0.1]])
    wanted = torch.tensor([[0.3, 0.3, 0.4]], requires_grad=True)
    swapped = loss(data, wanted)
    swapped.backward()
    assert wanted.grad is not None
    assert not torch.isclose(swapped, loss(wanted, data))


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss])
def test_these_losses_are_symmetric(loss) -> None:
    one, other = torch.tensor([0.2, 0.7]), torch.tensor([0.9, 0.3])
    assert torch.isclose(loss(one, other), loss(other, one))


def test_metadata_of_a_node_outlives_the_tensor_and_dies_with_the_node() -> None:
    weight = torch.ones(1, requires_grad=True)
    hidden = weight * 2
    hidden.grad_fn.metadata["mark"] = 1
    loss = hidden.sum()
    del hidden
    assert loss.grad_fn.next_functions[0][0].metadata == {"mark": 1}
