"""Ten minutes on one connection: neither the time of a step nor the memory of a stream grows."""

from __future__ import annotations

import gc
import itertools
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from model.ctc.beam import BeamDecoder
from server.audio.pcm import PCM
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.array_slots import Array, State
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, silence, spell

Start = Callable[..., LiveServer]
MINUTES = 10
SENTENCE = "the quick brown fox jumps over the lazy dog "


class UnsureModel(SpellingModel):
    """A spelling model in which other letters are likely enough to fill every beam."""

    def __init__(self) -> None:
        super().__init__()
        self._noise = np.random.default_rng(1).standard_normal((97, CONFIG.frames_per_step, len(CONFIG.vocabulary)))

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        log_probs, state = super().step(inputs, state)
        sure = np.where(log_probs > -10, 9.0, 0.0)
        noise = self._noise[state["steps"][:, 0].astype(np.int64) % len(self._noise)]  # (B, frames_per_step, V)
        scores = sure + 1.5 * noise
        return (scores - np.log(np.exp(scores).sum(axis=2, keepdims=True))).astype(np.float32), state


def minutes_of(audio: PCM) -> Iterator[PCM]:
    """Yield one-second parts of the repeated audio."""
    total, at = MINUTES * 60, 0
    for _ in range(total):
        yield np.take(audio, range(at, at + 16_000), mode="wrap")
        at = (at + 16_000) % len(audio)


def held(root: object) -> int:
    """Count our objects, and containers in them, that are reachable from `root`."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type | threading.Thread) or callable(found):
            continue
        if not isinstance(found, list | dict | tuple | set) and not _is_ours(found):
            continue
        seen[id(found)] = found
        waiting += gc.get_referents(found)
    return len(seen)


def _is_ours(found: object) -> bool:
    module = type(found).__module__
    return module.startswith(
        (
            "server.recognition.segments.segmenter",
            "server.recognition.segments.open_segment",
            "server.recognition.segments.utterance",
            "server.recognition.segments.channel_settings",
            "server.recognition.session",
            "server.recognition.segments.partials",
            "server.bias",
            "server.s",
            "model.ctc",
            "collections",
        )
    )


def decoding_of_a_minute(server: LiveServer, audio: PCM) -> list[float]:
    """Return the decoding time in ms of each step in the first minute of a new stream."""
    with server.listen(step_results="true") as client:
        for second in itertools.islice(minutes_of(audio), 60):
            client.send(second)
        client.say("CloseStream")
        times: list[float] = []
        while (found := client.receive())["type"] == "Results":
            times += [found["tutti"]["decode_ms"]] if "tutti" in found else []
        client.rest()
    return times


@pytest.mark.parametrize("pauses", [True, False], ids=["with pauses", "without a pause"])
def test_neither_cost_nor_memory_of_a_stream_grows_over_ten_minutes(live_server: Start, *, pauses: bool) -> None:
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=16)
    decoder.warm_up()
    server = live_server(model=UnsureModel(), decoder=decoder, max_utterance_s=10.0)
    audio = np.concatenate([spell(SENTENCE), silence(1.2)]) if pauses else spell(SENTENCE)
    steps: list[list[float]] = [[] for _ in range(MINUTES + 1)]
    sizes: dict[int, int] = {}
    finals: list[dict[str, Any]] = []
    with server.listen(step_results="true") as client:
        (route,) = server.replica.models.default.recognizer._routes.values()

        def send() -> None:
            for second in minutes_of(audio):
                client.send(second)
            client.say("CloseStream")

        sender = threading.Thread(target=send)
        sender.start()
        while (found := client.receive())["type"] == "Results":
            minute = int((found["start"] + found["duration"]) / 60)
            if "tutti" in found:
                steps[minute].append(found["tutti"]["decode_ms"])
            if found["is_final"]:
                finals.append(found)
                sizes.setdefault(minute, held(route.channel))
        sender.join()
        client.rest()
    text = transcript(finals).split()
    assert len(text) > MINUTES * 60 * 12.5 / 2 / 6, "most of it was recognized"
    assert all(f["duration"] <= 10.0 + 5.0 + 0.08 for f in finals)
    # A minute takes half a second here, which other processes can disturb. So the fast steps of each minute are
    # compared: the last three minutes with the first, and with a stream begun after them. Work that grows with the
    # length of the transcript would be ten times as much.
    minutes = [*steps[:MINUTES], decoding_of_a_minute(server, audio)]
    fast = [statistics.quantiles(times, n=10)[0] for times in minutes]
    begun, last = max(fast[0], fast[-1]), min(fast[MINUTES - 3 : MINUTES])
    assert last < 2 * begun, f"a step's decoding took {begun} ms in the first minute and {last} ms in the last"
    assert len(sizes) >= MINUTES - 1
    assert max(sizes.values()) <= 2 * min(sizes.values()) + 200, sizes
