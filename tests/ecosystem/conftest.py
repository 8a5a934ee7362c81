"""Fixtures of the tests with real clients: servers, relays to them and drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ecosystem.driving import Driver, node_driver, python_driver
from tests.ecosystem.recordings import Spoken, audio
from tests.ecosystem.relay import Relay
from tests.ecosystem.serving import ServerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder and of those in it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("ecosystem")


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with the shipped model, for all tests that do not change it."""
    with ServerProcess() as process:
        yield process


@pytest.fixture(scope="session")
def strict_process() -> Iterator[ServerProcess]:
    """A server with two streams, one per key, an idle timeout of two seconds, and utterances of at most 2.4 s."""
    with ServerProcess(max_streams=2, max_streams_per_key=1, idle_timeout_s=2, max_utterance_s=2.4) as process:
        yield process


@pytest.fixture
def strict_server(strict_process: ServerProcess) -> ServerProcess:
    """`strict_process` after the streams of earlier tests are released, which is after their close frames."""
    strict_process.wait_for_streams(0)
    return strict_process


@pytest.fixture
def relay() -> Iterator[Callable[[ServerProcess], Relay]]:
    """Put a relay before a server: `relay(server)`."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Relay(server.port))


@pytest.fixture(scope="session")
def livekit() -> Iterator[Driver]:
    """LiveKit's Deepgram plugin."""
    with python_driver("livekit") as driver:
        yield driver


@pytest.fixture(scope="session")
def pipecat() -> Iterator[Driver]:
    """Pipecat's Deepgram service."""
    with python_driver("pipecat") as driver:
        yield driver


@pytest.fixture(scope="session")
def node() -> Iterator[Driver]:
    """Deepgram's SDK for JavaScript, and `ws`."""
    with node_driver() as driver:
        yield driver


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Write a file of raw audio for a driver: `spoken("order", 1.6, "porch_fan")`, as in `recordings.audio`."""
    folder = tmp_path_factory.mktemp("spoken")

    def write(*parts: str | float) -> str:
        path = folder / f"{'-'.join(map(str, parts))}.raw"
        path.write_bytes(audio(*parts))
        return str(path)

    return write
