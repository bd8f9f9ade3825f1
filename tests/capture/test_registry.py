"""Numbers are never reused, though addresses are."""

import gc
import weakref
from contextlib import suppress

import torch

from graphlint.capture.registry import Storages, WeakNumbers, version_of


def test_an_object_keeps_its_number() -> None:
    numbers = WeakNumbers()
    tensor = torch.ones(1)
    assert numbers.find(tensor) is None
    assert numbers.add(tensor) == 0
    assert numbers.find(tensor) == 0
    assert numbers.live() == {0: tensor}


def test_addresses_are_reused_and_numbers_are_not() -> None:
    numbers = WeakNumbers()
    addresses, given = set(), []
    for _ in range(3000):
        tensor = torch.ones(1)
        assert numbers.find(tensor) is None
        addresses.add(id(tensor))
        given.append(numbers.add(tensor))
        del tensor
    assert len(addresses) < 3000
    assert given == list(range(3000))
    assert len(numbers.references) == 0


def test_a_dead_reference_at_an_address_does_not_answer_for_the_newcomer() -> None:
    numbers = WeakNumbers()
    first = torch.ones(1)
    numbers.add(first)
    # The tensor is resurrected or dies late: the entry stays, and leads to another object.
    second = torch.ones(1)
    numbers.references[id(second)] = numbers.references[id(first)]
    assert numbers.find(second) is None
    assert numbers.add(second) == 1
    assert numbers.find(second) == 1
    del first
    gc.collect()
    assert numbers.find(second) == 1


def test_aliases_share_the_number_of_a_storage() -> None:
    storages = Storages()
    tensor = torch.ones(2, 2, requires_grad=True)
    number = storages.number(tensor)
    for alias in (
        tensor.view(4),
        tensor.detach(),
        tensor.data,
        tensor[0],
        tensor.t(),
        torch.nn.Parameter(tensor),
    ):
        assert storages.number(alias) == number
    assert storages.number(tensor.clone()) != number
    assert storages.number(tensor + 0) != number


def test_storages_that_come_and_go_get_numbers_of_their_own() -> None:
    storages = Storages()
    given = [storages.number(torch.ones(1)) for _ in range(9000)]
    assert len(set(given)) == 9000
    assert len(storages._known) <= 4096


def test_a_tensor_without_a_storage_gets_a_number_of_its_own() -> None:
    storages = Storages()
    sparse = torch.sparse_coo_tensor([[0], [0]], [1.0], (2, 2), check_invariants=True)
    assert storages.number(sparse) != storages.number(sparse)


def test_numbering_keeps_no_memory() -> None:
    storages = Storages()
    tensor = torch.ones(10)
    storages.number(tensor)
    storage = tensor.untyped_storage()
    before = storage.nbytes()
    del tensor
    assert before == 40
    ((reference, _),) = storages._known.values()
    assert not reference.expired()
    del storage
    assert reference.expired()


def test_an_inference_tensor_has_no_version() -> None:
    with torch.inference_mode():
        made = torch.ones(1)
    assert version_of(made) == -1
    plain = torch.ones(1)
    plain.add_(1)
    assert version_of(plain) == 1


def test_what_is_let_go_has_no_weak_reference_in_the_block_and_its_number_after_it() -> None:
    numbers = WeakNumbers()
    first, second, unknown = torch.ones(1), torch.ones(1), torch.ones(1)
    given = numbers.add(first), numbers.add(second)
    with suppress(ValueError), numbers.letting_go(first, unknown):
        assert weakref.getweakrefs(first) == []
        assert numbers.find(first) is None
        assert numbers.find(second) == given[1]
        raise ValueError
    assert (numbers.find(first), numbers.find(second), numbers.find(unknown)) == (*given, None)
    assert numbers.add(unknown) == 2
