"""One thread for these tests: with models this small, waiting for a second one costs more than it gives."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
