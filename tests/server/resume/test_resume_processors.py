"""A stream moved between replicas on different processors has the words, times and confidences of one that stayed.

One server process runs natively, the other as with only AVX2, by the switches of `tests/support/processors.py`. Both
serve the shipped model in 8 bits; states in other precisions may differ in the last bits between processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from model.machine.native import InstructionSet
from model.recordings import read_pcm
from server.resume.tickets import new_key
from tests.support.audio.speech import samples
from tests.support.clients.resume_client import Received, ResumingClient
from tests.support.processors import AVX2, environment, has, is_x86
from tests.support.servers.server_process import COMPILE_S, REAL, ServerProcess

RATE = 16_000
Pair = tuple[ServerProcess, ServerProcess]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A native replica and one restricted to AVX2; the instructions reported by each are checked."""
    key = new_key()
    with ExitStack() as stack:

        def started(switches: dict[str, str]) -> ServerProcess:
            return stack.enter_context(
                ServerProcess(
                    program=("-c", REAL),
                    inherited=environment(switches),
                    start_s=COMPILE_S,
                    precision="int8",
                    resume_keys=(key,),
                )
            )

        native, other = started({}), started(AVX2)
        assert instructions(native) == native_instructions()
        if is_x86() and has("avx2"):
            assert instructions(other) == "avx2"
        yield native, other


def instructions(server: ServerProcess) -> str:
    """Return the instructions that a replica reports for byte products."""
    line = server.wait_for("model loaded")
    assert line["precision"] == "int8"
    return str(line["instructions"])


def native_instructions() -> InstructionSet:
    """Return the processor's instruction set, regardless of this process's environment variables."""
    if has("avx512vnni") and has("avx512bw"):
        return "vnni512"
    if has("avxvnni"):
        return "vnni256"
    return "avx2" if has("avx2") else "portable"


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    """Return twenty seconds of several voices with a second between them, (S, 1)."""
    parts: list[np.ndarray] = []
    for utterance in samples()[:5]:
        parts += [read_pcm(utterance.audio), np.zeros(RATE, np.int16)]
    return np.concatenate(parts)[: 20 * RATE, None]


@pytest.fixture(scope="module")
def whole(pair: Pair, audio: np.ndarray) -> Received:
    """Return the results of the native replica alone."""
    received = streamed(pair[:1], audio)
    assert sum(len(final["channel"]["alternatives"][0]["words"]) for final in received.finals) > 10
    return received


def streamed(servers: tuple[ServerProcess, ...], audio: np.ndarray, *losses_s: float) -> Received:
    """Stream to the first server; after each lost connection continue on the next one."""
    query = {"interim_results": "true", "smart_format": "true", "keyterm": "garden gate"}
    return ResumingClient(servers, audio, RATE, **query).run(losses_s)


def test_replicas_on_different_processors_give_the_same_results(pair: Pair, audio: np.ndarray, whole: Received) -> None:
    assert streamed(pair[1:], audio).results == whole.results


@pytest.mark.parametrize("losses_s", [(10.3,), (2.7, 6.1, 9.9, 13.2, 17.5)])
@pytest.mark.parametrize("first", [0, 1], ids=["native first", "AVX2 first"])
def test_a_stream_moved_to_a_replica_on_another_processor_has_the_same_results(
    pair: Pair, audio: np.ndarray, whole: Received, first: int, losses_s: tuple[float, ...]
) -> None:
    order = (pair[first], pair[1 - first])
    before = [server.metric('tutti_resumes_total{outcome="resumed"}') for server in order]
    moved = streamed(order, audio, *losses_s)
    after = [server.metric('tutti_resumes_total{outcome="resumed"}') for server in order]
    assert [b - a for a, b in zip(before, after, strict=True)] == [len(losses_s) // 2, -(-len(losses_s) // 2)]
    assert moved.results == whole.results
    assert moved.others[-1]["duration"] == whole.others[-1]["duration"]
