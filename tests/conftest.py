"""What every test shares."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Compute as a server on two cores does: with one thread, so that tests measure no barrier spinning."""
    torch.set_num_threads(1)
