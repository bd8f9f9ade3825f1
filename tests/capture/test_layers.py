"""Which layers depend on their mode: torch's own are asked, in both modes."""

import pytest
import torch
from torch import nn

from graphlint.capture.layers import depends_on_mode

LAYERS = {
    "dropout": (nn.Dropout(0.5), "dropout", (4, 8)),
    "no dropout": (nn.Dropout(0.0), None, (4, 8)),
    "alpha dropout": (nn.AlphaDropout(0.5), "dropout", (4, 8)),
    "dropout of channels": (nn.Dropout2d(0.5), "dropout", (2, 3, 4, 4)),
    "batch norm": (nn.BatchNorm1d(8), "statistics", (4, 8)),
    "batch norm without statistics": (nn.BatchNorm1d(8, track_running_stats=False), None, (4, 8)),
    "instance norm": (nn.InstanceNorm1d(8), None, (4, 8, 5)),
    "instance norm with statistics": (
        nn.InstanceNorm1d(8, track_running_stats=True),
        "statistics",
        (4, 8, 5),
    ),
    "layer norm": (nn.LayerNorm(8), None, (4, 8)),
    "deep recurrence": (nn.GRU(8, 8, num_layers=2, dropout=0.5), "dropout", (5, 4, 8)),
    "recurrence": (nn.GRU(8, 8), None, (5, 4, 8)),
    "linear": (nn.Linear(8, 8), None, (4, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_told_by_what_it_computes(name: str) -> None:
    layer, told, shape = LAYERS[name]
    assert depends_on_mode(layer) == told
    torch.manual_seed(0)
    x = torch.randn(shape)
    results = [layer.train(mode)(x) for mode in (True, False)]
    first, second = [result[0] if isinstance(result, tuple) else result for result in results]
    assert torch.equal(first, second) == (told is None)


def test_attention(record) -> None:
    x = torch.randn(5, 4, 8)
    for rate, told in ((0.5, "dropout"), (0.0, None)):
        layer = nn.MultiheadAttention(8, 2, dropout=rate)
        assert depends_on_mode(layer) == told
        first, second = (layer.train(mode)(x, x, x)[0] for mode in (True, False))
        assert torch.allclose(first, second, atol=1e-6) == (told is None)


def test_a_single_layer_of_recurrence_has_no_dropout() -> None:
    with pytest.warns(UserWarning, match="num_layers greater than 1"):
        layer = nn.LSTM(8, 8, dropout=0.5)
    assert depends_on_mode(layer) is None


def test_the_record_holds_it(record) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1))
    trace = record(lambda: net(torch.ones(3, 2)))
    assert {row.path: row.by_mode for row in trace.modules.values()} == {
        "": None,
        "0": None,
        "1": "statistics",
        "2": "dropout",
    }
