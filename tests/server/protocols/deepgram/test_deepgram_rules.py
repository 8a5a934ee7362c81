"""Rules that clients rely on, for any audio, encoding, split into messages and timing of results. Sources: Deepgram's
pages on finalize, endpointing and utterance end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.raw import alaw_table, mulaw_table
from server.recognition.session_options import Limits
from server.tools.evaluate import coded
from tests.support.audio.media_files import container
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.streams.transport_bench import IDLE_S, MAX_CHANNELS, ConnectionBench, Frame

LIMITS = Limits(silence_endpoint_ms=900.0, max_utterance_s=3.0, max_backlog_s=1e9)
NEAR_S = 3e-6  # times in frames are rounded to microseconds
CLOSES = {"CloseStream": 1000, "empty frame": 1000, "idle": 1011, "drain": 1012}
ENCODE = {
    "linear16": lambda pcm, _: pcm.tobytes(),
    "linear32": lambda pcm, _: (pcm / 32_768).astype("<f4").tobytes(),
    "mulaw": lambda pcm, _: coded(pcm, mulaw_table()).tobytes(),
    "alaw": lambda pcm, _: coded(pcm, alaw_table()).tobytes(),
    "flac": lambda pcm, rate: container("flac", "flac", pcm, rate),
    "wav": lambda pcm, rate: container("wav", "pcm_s16le", pcm, rate),
}
LAYOUTS_KNOWN = (1, 2)  # to the encoder of these tests


@dataclass(frozen=True)
class Case:
    """One client: its query and what it sends. `places` are the shares of the bytes after which text frames follow."""

    encoding: str
    rate: int
    channels: int
    multichannel: bool
    options: dict[str, str]
    audio: np.ndarray  # (S, C)
    frames: tuple[Frame, ...]
    places: tuple[float, ...]
    end: str

    @property
    def streams(self) -> int:
        return self.channels if self.multichannel else 1

    @property
    def query(self) -> dict[str, str]:
        shape = {"channels": str(self.channels), "multichannel": str(self.multichannel).lower()} | self.options
        if self.encoding == "wav":
            return shape
        return {"encoding": self.encoding, "sample_rate": str(self.rate)} | shape

    def script(self) -> list[bytes | Frame]:
        """Return the pieces of audio bytes with the text frames between them."""
        data = ENCODE[self.encoding](self.audio, self.rate)
        at = sorted(round(place * len(data)) for place in self.places)
        stretches = [data[a:b] for a, b in itertools.pairwise([0, *at, len(data)])]
        return [
            item for pair in itertools.zip_longest(stretches, self.frames) for item in pair if item not in (None, b"")
        ]


words = st.text("abcde ", min_size=1, max_size=8)
sounds = st.one_of(
    st.tuples(words, st.integers(0, 700)).map(lambda t: spell(t[0])[t[1] :]),
    st.integers(0, 30_000).map(lambda n: silence(n / 16_000)),
)
booleans = st.sampled_from(["true", "false"])


@st.composite
def cases(draw: st.DrawFn, ends: Sequence[str] = tuple(CLOSES)) -> Case:
    encoding = draw(st.sampled_from(list(ENCODE)))
    channels = draw(st.sampled_from(LAYOUTS_KNOWN) if encoding in ("flac", "wav") else st.integers(1, MAX_CHANNELS))
    multichannel = draw(st.booleans())
    columns = [np.concatenate(draw(st.lists(sounds, min_size=1, max_size=3))) for _ in range(channels)]
    length = max(1, *map(len, columns))
    places = draw(st.lists(st.floats(0, 1), max_size=4))
    flushable = st.integers(0, channels - 1 if multichannel else 0)
    frame = st.one_of(
        st.just({"type": "Finalize"}),
        flushable.map(lambda channel: {"type": "Finalize", "channel": channel}),
        st.sampled_from([{"type": "KeepAlive"}, {"type": "Configure", "keyterms": None}, {"type": "Pause"}]),
    )
    return Case(
        encoding,
        draw(st.sampled_from([16_000, 16_000, 8_000, 44_100])),
        channels,
        multichannel,
        {"interim_results": draw(booleans), "vad_events": draw(booleans), "utterance_end_ms": "700"},
        np.stack([np.pad(c, (0, length - len(c))) for c in columns], axis=1),
        tuple(draw(frame) for _ in places),
        tuple(places),
        draw(st.sampled_from(list(ends))),
    )


def end(bench: ConnectionBench, how: str) -> None:
    """The end of a connection, by either side."""
    match how:
        case "CloseStream":
            bench.send({"type": "CloseStream"})
        case "empty frame":
            bench.send(b"")
        case "drain":
            bench.stream.drain()
        case "idle":
            bench.clock.advance(IDLE_S)


def played(case: Case, data: st.DataObject | None = None) -> ConnectionBench:
    """Run the case with one message per piece, each answered at once; or split and answered as drawn."""
    bench = ConnectionBench(LIMITS, **case.query)

    async def script(_: ConnectionBench) -> None:
        for item in case.script():
            if isinstance(item, dict) or data is None:
                bench.send(item)
            else:
                cuts = sorted(data.draw(st.lists(st.integers(1, max(1, len(item) - 1)), max_size=5, unique=True)))
                for start, stop in itertools.pairwise([0, *cuts, len(item)]):
                    if start < stop:
                        bench.send(item[start:stop])
            if data is None:
                await turns(10)
                bench.answer()
            else:
                await turns(data.draw(st.integers(0, 3)))
                bench.answer(data.draw(st.integers(0, 30)), data.draw(st.integers(0, case.streams - 1)))
        await turns(100)  # else a silence would start before everything is decoded
        end(bench, case.end)

    bench.run(script)
    return bench


async def turns(count: int) -> None:
    """Let the event loop run this many iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


def results(frames: Sequence[Frame], channel: int) -> list[Frame]:
    """Return the results of one channel."""
    return [f for f in frames if f["type"] == "Results" and f["channel_index"][0] == channel]


@settings(max_examples=120)
@given(cases(), st.data())
def test_results_depend_only_on_the_audio_and_the_frames(case: Case, data: st.DataObject) -> None:
    whole, cut = played(case), played(case, data)
    for channel in range(case.streams):
        assert results(cut.frames, channel) == results(whole.frames, channel)
    assert cut.frames[-1] == whole.frames[-1]


@settings(max_examples=120)
@given(cases(), st.data())
def test_results_tile_the_stream_time_in_order(case: Case, data: st.DataObject) -> None:
    """Rules 1 and 7, and interims are sent only on request."""
    bench = played(case, data)
    frames, duration_s = bench.frames, len(case.audio) / case.rate
    for channel in range(case.streams):
        segment_s = cursor_s = 0.0
        for said in results(frames, channel):
            end_s = said["start"] + said["duration"]
            assert said["channel_index"] == [channel, case.streams]
            assert said["start"] == pytest.approx(segment_s, abs=NEAR_S)
            assert end_s >= cursor_s - NEAR_S, "never an older result after a newer one"
            for word in said["channel"]["alternatives"][0]["words"]:
                assert said["start"] - 1e-3 <= word["start"] <= word["end"] <= end_s + 1e-3
            cursor_s = end_s
            if said["is_final"]:
                segment_s = end_s
            else:
                assert case.options["interim_results"] == "true"
                assert not said["speech_final"]
                assert not said["from_finalize"]
        if CLOSES[case.end] == 1000:
            assert segment_s == pytest.approx(duration_s, abs=1e-3), "the last final ends where the audio ends"
    assert frames[-1]["duration"] == pytest.approx(duration_s, abs=1e-3)


@settings(max_examples=120)
@given(cases(), st.data())
def test_every_channel_answers_a_finalize_once_and_every_end_has_its_frames(case: Case, data: st.DataObject) -> None:
    """Rules 3 to 6."""
    bench = played(case, data)
    frames = bench.frames
    for channel in range(case.streams):
        answers = [f for f in results(frames, channel) if f["from_finalize"]]
        ours = [f for f in case.frames if f["type"] == "Finalize" and f.get("channel", channel) == channel]
        assert len(answers) == len(ours)
        assert all(f["is_final"] and f["speech_final"] for f in answers)
        if CLOSES[case.end] == 1000:
            last = results(frames, channel)[-1]
            assert (last["is_final"], last["speech_final"], last["from_finalize"]) == (True, True, False)
    asked = [f["type"] for f in case.frames]
    kinds = [f["type"] for f in frames]
    assert kinds.count("Metadata") == 1
    assert kinds[-1] == "Metadata"
    assert kinds.count("Error") == asked.count("Pause")
    assert kinds.count("ConfigureSuccess") == asked.count("Configure")
    assert case.options["vad_events"] == "true" or "SpeechStarted" not in kinds
    assert frames[-1]["channels"] == case.streams
    assert bench.transport.closed is not None
    assert bench.transport.closed[0] == CLOSES[case.end]


def test_a_finalize_in_silence_or_before_audio_gets_an_empty_final() -> None:
    bench = ConnectionBench(LIMITS, encoding="mulaw", sample_rate="8000", channels="2", multichannel="true")

    async def script(_: ConnectionBench) -> None:
        bench.send({"type": "Finalize"})
        bench.send(b"\xff" * 2 * 4_000)  # half a second of silence
        bench.send({"type": "Finalize", "channel": 1})
        bench.answer()
        bench.send({"type": "CloseStream"})

    bench.run(script)
    said = [
        (f["channel_index"][0], f["start"], f["duration"], f["from_finalize"])
        for f in bench.frames
        if f["type"] == "Results"
    ]
    assert sorted(said[:2]) == [(0, 0.0, 0.0, True), (1, 0.0, 0.0, True)]
    assert said[2] == (1, 0.0, 0.5, True)
    assert sorted(said[3:]) == [(0, 0.0, 0.5, False), (1, 0.5, 0.0, False)]


def test_an_endpoint_in_pure_silence_is_an_empty_final() -> None:
    """It ends no speech: new speech may have begun by the time it is sent."""
    bench = ConnectionBench(LIMITS, encoding="linear16", sample_rate="16000", interim_results="true")

    async def script(_: ConnectionBench) -> None:
        bench.send(silence(2.0).tobytes())
        bench.answer()
        bench.send({"type": "CloseStream"})

    bench.run(script)
    first = next(f for f in bench.frames if f["is_final"])
    assert (first["speech_final"], first["from_finalize"]) == (False, False)
    assert first["channel"]["alternatives"][0] == {"transcript": "", "confidence": 0.0, "words": []}
