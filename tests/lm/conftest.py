"""These tests use one thread: with models this small, a second one costs more than it gains."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
