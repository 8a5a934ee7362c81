"""What every test shares."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from model.machine.runtime import set_up_torch
from tests.support.servers.live_server import LiveServer
from tests.support.streams.engine_bench import start_engine  # noqa: F401  a fixture

LONGEST = (
    "server/models/test_new_language.py",
    "model/int8/test_portability.py",
    "gpu/test_interpreted.py",
    "deploy/test_ray.py",
    "model/training/acoustic/test_processes.py",
    "deploy/test_ray_training.py",
    "deploy/test_wheels.py",
    "loadtest/benchmarks/gpu/test_dry_run.py",
    "model/test_shipped_model.py",
    "model/training/acoustic/test_parallel.py",
    "server/test_faults_engine.py",
    "gpu/test_triton_gates.py",
)
"""Files that take 20 to 90 seconds, longest first."""

# A machine that is busy elsewhere draws examples slowly; that says nothing about the code.
settings.register_profile("tutti", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tutti")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files begin first; two processes end together then."""
    folder = Path(__file__).parent
    first = [folder / name for name in LONGEST]
    assert all(path.exists() for path in first), "a file of LONGEST is gone"
    items.sort(key=lambda item: first.index(item.path) if item.path in first else len(first))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Compute as a server on two cores does: with one thread, so that tests measure no barrier spinning."""
    if find_spec("torch") is not None:
        set_up_torch(1)


@pytest.fixture
def live_server() -> Iterator[Callable[..., LiveServer]]:
    """Start the real app on a free loopback port: `live_server(model=…, max_streams=2)`; stopped after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> LiveServer:
            return stack.enter_context(LiveServer(**options))

        yield start
