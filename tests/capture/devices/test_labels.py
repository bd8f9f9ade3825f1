import gc

import pytest
import torch

from graphlint.capture.devices.labels import Label, LabelTable, address_of, tensors_in

CUDA = Label("cuda:0")


def test_a_label_belongs_to_the_storage():
    table = LabelTable()
    tensor = torch.ones(4, requires_grad=True)
    table.put(tensor, CUDA)
    assert table.get(tensor[1:]) == table.get(tensor.detach()) == table.get(tensor.data) == CUDA
    assert table.get(torch.nn.Parameter(tensor.detach())) == CUDA
    assert table.get(tensor.clone()) is None
    table.clear()


def test_a_dead_storages_address_is_not_taken_over():
    table = LabelTable()
    for _ in range(200):
        table.put(torch.ones(3), CUDA)
        assert table.get(torch.ones(3)) is None
    table.clear()


def test_pruning_forgets_the_dead_and_keeps_the_living():
    table = LabelTable()
    kept = torch.ones(3)
    table.put(kept, CUDA)
    for _ in range(5000):
        table.put(torch.ones(3), CUDA)
    assert len(table) < 1200
    assert table.get(kept) == CUDA
    table.prune()
    assert len(table) == 1
    assert table.bytes_on("cuda:0") == 12
    table.clear()
    assert table.get(kept) is None


def test_no_storage_lives_longer():
    table = LabelTable()
    tensor = torch.ones(3)
    address = address_of(tensor)
    table.put(tensor, CUDA)
    del tensor
    gc.collect()
    assert torch.UntypedStorage._expired(address)
    table.clear()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_tensors_without_a_storage_are_labelled_by_what_they_hold():
    table = LabelTable()
    sparse = torch.eye(3).to_sparse()
    compressed = torch.eye(3).to_sparse_csr()
    table.put(sparse, CUDA)
    table.put(compressed, CUDA)
    assert table.get(sparse) == table.get(compressed) == CUDA
    assert table.get(torch.eye(3).to_sparse()) is None
    table.clear()


def test_tensors_are_found_in_nested_arguments():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    assert list(tensors_in((one, [2, (two, "x")], {"a": {"b": three}}))) == [one, two, three]
