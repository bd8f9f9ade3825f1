"""Gives the tests the tiny GAN, whose file is also a script, and one thread of arithmetic."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).with_name("tiny_gan.py")


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module `tiny_gan`, under a name of its own."""
    spec = importlib.util.spec_from_file_location("tiny_gan_of_the_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def script() -> Path:
    return SCRIPT


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
