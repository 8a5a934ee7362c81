"""Pipecat's two services for SageMaker, unmodified, with Amazon's own client: one address and one fault are changed.

Between them and the server is `drivers/sagemaker_router.cjs` instead of SageMaker. `@deepgram/sagemaker` sends the same
requests with the same client for node; it is not in npm's registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.ecosystem.driving import HERE, Driver, need
from tests.ecosystem.environments import NODE, PIPECAT
from tests.ecosystem.recordings import Spoken, plain, text
from tests.ecosystem.serving import ServerProcess
from tests.support.deployment.certificates import self_signed
from tests.support.needs import missing


@pytest.fixture(scope="module")
def container() -> Iterator[ServerProcess]:
    """A server as SageMaker starts it: without keys; with two streams."""
    with ServerProcess(sagemaker=True, api_keys="[]", max_streams=2) as process:
        yield process


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a certificate for 127.0.0.1, tls.crt, and its key, tls.key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def router(container: ServerProcess, certificate: Path) -> Iterator[Driver]:
    """The stand-in for SageMaker, which reports its port and the streams' paths, queries and closes."""
    if not list((need(PIPECAT) / "lib").glob("*/site-packages/aws_sdk_sagemaker_runtime_http2")):
        missing("no Python 3.12 or later, which Amazon's client needs")
    command = [str(certificate / "tls.crt"), str(certificate / "tls.key"), f"127.0.0.1:{container.port}"]
    modules = str(need(NODE) / "node_modules")
    with Driver(["node", HERE / "drivers" / "sagemaker_router.cjs", *command], NODE_PATH=modules) as started:
        yield started


def run(router: Driver, pipecat: Driver, certificate: Path, steps: list[Any], **more: Any) -> list[dict[str, Any]]:
    """Run a scenario of the service through the router; return its events."""
    port = router.until(lambda event: event["event"] == "listening")[-1]["port"]
    trusted = str(certificate / "tls.crt")
    return pipecat.run("stream", host=f"127.0.0.1:{port}", key="", trusted=trusted, steps=steps, **more)


def said(events: list[dict[str, Any]]) -> list[str]:
    return [plain(event["text"]) for event in events if event["event"] == "final"]


def test_a_stream(router: Driver, pipecat: Driver, certificate: Path, spoken: Spoken) -> None:
    """Its default settings, each of which is sent, and a Finalize at the end of speech."""
    steps = [("start",), ("push", spoken("order")), ("stop",), ("wait", "final")]
    settings = {"keyterm": ["porch"], "detect_entities": False}
    events = run(router, pipecat, certificate, steps, options={"settings": settings})
    assert said(events) == [text("order")]
    stream, closed = router.until(lambda event: event["event"] == "closed")
    assert stream["path"] == "v1/listen"
    assert parse_qs(stream["query"])["keyterm"] == ["porch"]
    assert closed["code"] == 1000


def test_a_stream_with_turns(router: Driver, pipecat: Driver, certificate: Path, spoken: Spoken) -> None:
    first, second = spoken("order", 2.0), spoken("porch_fan", 2.0)
    steps = [("push", first), ("wait", "final"), ("push", second), ("wait", "final", 2)]
    events = run(router, pipecat, certificate, steps, turns=True, options={"enable_eager_end_of_turn": True})
    assert said(events) == [text("order"), text("porch_fan")]
    assert text("order") in [plain(event["text"]) for event in events if event["event"] == "eager"]
    assert router.until(lambda event: event["event"] == "closed")[0]["path"] == "v2/listen"


@pytest.mark.parametrize("turns", [False, True])
def test_a_refusal_is_a_model_error_with_the_servers_reason(
    router: Driver, pipecat: Driver, certificate: Path, *, turns: bool
) -> None:
    events = run(router, pipecat, certificate, [("wait", "error")], turns=turns, options={"encoding": "g729"})
    why = [event["error"] for event in events if event["event"] == "error"]
    assert "encoding" in why[0], why
