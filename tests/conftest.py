"""What every test shares."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from engine_bench import start_engine  # noqa: F401  a fixture
from hypothesis import HealthCheck, settings
from live_server import LiveServer

from model.runtime import set_up_torch

# A machine that is busy elsewhere draws examples slowly; that says nothing about the code.
settings.register_profile("tutti", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tutti")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Compute as a server on two cores does: with one thread, so that tests measure no barrier spinning."""
    set_up_torch(1)


@pytest.fixture
def live_server() -> Iterator[Callable[..., LiveServer]]:
    """Start the real app on a free loopback port: `live_server(model=…, max_streams=2)`; stopped after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> LiveServer:
            return stack.enter_context(LiveServer(**options))

        yield start
