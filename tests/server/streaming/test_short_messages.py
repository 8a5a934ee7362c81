"""Short messages of audio are joined to whole steps, and nothing else about a stream changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.pcm import PCM
from server.protocols.flux.adapter import FluxAdapter
from server.protocols.flux.messages import parse_query
from server.recognition.session_options import Limits
from server.recognition.steps import StepTag
from server.streaming.flow_control import ShortMessages, is_audio
from tests.server.streaming.test_connection import MAX_BACKLOG_S, Bench
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.transport_bench import ConnectionBench

STEP_BYTES = 2 * CONFIG.step_samples
PIECE = silence(0.02).tobytes()
FINALIZE = '{"type":"Finalize"}'

Message = bytes | str
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.integers(1, 5 * STEP_BYTES // 4).map(lambda size: spell("ab cd").tobytes()[:size] or b"\0"),
    st.sampled_from([len(PIECE), len(PIECE) // 2, 1, 2, STEP_BYTES - 1, STEP_BYTES]).map(bytes),
    st.just(b"{" + PIECE[1:]),  # audio that begins as a control message does
    st.sampled_from([FINALIZE, FINALIZE.encode(), '{"type":"KeepAlive"}', "no JSON"]),
)


class Recorded(ConnectionBench):
    """A stream of `/v1/listen`, or of Flux, and what it pushed to the engine."""

    def __init__(self, *, flux: bool = False, **query: str) -> None:
        limits, form = Limits(max_backlog_s=MAX_BACKLOG_S), {"encoding": "linear16", "sample_rate": "16000"} | query
        self.pushed: list[tuple[bytes, int, str]] = []
        if not flux:
            super().__init__(limits, step_results="true", **form)
            return
        request = parse_query(tuple({"model": "flux-general-en", **form}.items()))
        adapter = FluxAdapter(request, "id", delay_s=CONFIG.delay_frames * CONFIG.frame_s)
        options = replace(request.options, fork_after_s=None, forks=False)
        super().__init__(limits, adapter=adapter, options=options, form=request.form)

    def push(self, stream: int, pcm: PCM, *, tag: StepTag, reset: bool) -> None:
        self.pushed.append((pcm.tobytes(), tag.end_sample, tag.marker.value))
        super().push(stream, pcm, tag=tag, reset=reset)


def outcome(messages: Sequence[Message], *, flux: bool, **query: str) -> tuple[object, ...]:
    """What a stream makes of messages: its steps, its frames, the audio that it counted, and how it ended."""
    bench = Recorded(flux=flux, **query)

    async def script(_: ConnectionBench) -> None:
        for message in (*messages, '{"type":"CloseStream"}'):
            bench.send(message)
            bench.clock.advance(0.02)
            bench.answer()

    bench.run(script)
    counted = bench.session.audio.received_s, bench.metrics.audio_bytes.value
    return bench.pushed, bench.frames, *counted, bench.stream.end_reason


CONFIGURE = '{"type":"Configure","thresholds":{"eot_threshold":0.6,"eager_eot_threshold":0.4}}'
FLUX_MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.integers(1, 5 * STEP_BYTES // 4).map(lambda size: spell("ab cd").tobytes()[:size] or b"\0"),
    st.sampled_from([len(PIECE), len(PIECE) // 2, 0, 1, 2, STEP_BYTES - 1, STEP_BYTES, 8 * STEP_BYTES]).map(bytes),
    st.just(b"{" + PIECE[1:]),
    st.sampled_from(['{"type":"ForceEndTurn"}', CONFIGURE, '{"type":"KeepAlive"}']),
)
FLUX_FORMS = [{}, {"eager_eot_threshold": "0.4"}, {"sample_rate": "8000"}, {"encoding": "mulaw"}]


STREAMS = st.one_of(
    st.tuples(
        st.just(False),
        st.lists(MESSAGES, max_size=30),
        st.sampled_from([{}, {"channels": "2"}, {"sample_rate": "8000"}]),
    ),
    st.tuples(st.just(True), st.lists(FLUX_MESSAGES, max_size=30), st.sampled_from(FLUX_FORMS)),
)


@settings(max_examples=300, deadline=None)
@given(STREAMS)
def test_joining_changes_no_step_no_frame_and_no_count(stream: tuple[bool, list[Message], dict[str, str]]) -> None:
    flux, messages, query = stream
    joined = outcome(messages, flux=flux, **query)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShortMessages, "make_room", lambda *_: None)
        each = outcome(messages, flux=flux, **query)
    assert joined == each


@pytest.mark.parametrize(
    ("query", "counted"),
    [
        ({}, [1, 1, 1, 4, 4, 4, 4, 8, 8]),
        ({"encoding": "mulaw"}, [1, 2, 2, 4, 4, 6, 6, 8, 8]),  # 40 ms each
        ({"sample_rate": "8000"}, [1, 1, 3, 3, 3, 6, 6, 6, 9]),  # resampled, in blocks of 104 ms
    ],
)
@pytest.mark.parametrize("flux", [False, True])
def test_messages_of_plain_audio_are_joined(query: dict[str, str], counted: list[int], *, flux: bool) -> None:
    """Three of four messages of 20 ms wait for the fourth; the first one decides that the audio is plain."""
    bench = Recorded(flux=flux, **query)
    found: list[float] = []

    async def script(each: ConnectionBench) -> None:
        for _ in counted:
            each.send(PIECE)
            found.append(each.metrics.audio_bytes.value / len(PIECE))
        each.send('{"type":"CloseStream"}')

    bench.run(script)
    assert found == counted
    assert bench.metrics.audio_bytes.value == len(counted) * len(PIECE), "the last messages are not lost"


def test_audio_before_a_drain_is_handled_first() -> None:
    bench = Bench()

    def script() -> None:
        for _ in range(7):
            bench.stream.on_message(PIECE)
        bench.stream.drain()

    bench.play(script)
    assert bench.session.audio.received_s == pytest.approx(0.14)
    assert bench.stream._short.room == 0


def test_a_client_of_short_messages_is_not_idle() -> None:
    bench = Bench()

    def script() -> None:
        bench.stream.on_message(PIECE)
        for _ in range(3):
            bench.clock.advance(40.0)
            bench.stream.on_message(PIECE[:64])
            bench.stream._on_timer()
            assert bench.transport.closed is None

    bench.play(script)


def test_bytes_that_break_the_stream_are_handled_once() -> None:
    """The end of the audio handles what came before it, which may itself end the stream."""
    bench = Bench()

    def script() -> None:
        bench.stream.on_message(PIECE)
        bench.stream.on_message(PIECE)
        bench.session._max_backlog_s = 0.0  # the next audio is too much
        bench.stream.on_message('{"type":"CloseStream"}')
        bench.stream.drain()

    bench.play(script)
    assert bench.transport.closed is not None
    assert bench.stream.end_reason.value == "too_fast"


def test_messages_that_may_be_control_messages_are_not_kept() -> None:
    short = ShortMessages()
    short.make_room(100, 0)
    assert short.room == 0, "not plain"
    short.make_room(100, 1)
    assert short.room == 100
    short.kept += [bytes(60), bytes(39)]
    assert short.release(b"\1") == bytes(99) + b"\1"
    assert (short.kept, short.room) == ([], 0), "no room until it is given anew"
    assert is_audio(b"\0{")
    assert not any(is_audio(message) for message in ("text", b"", b"{}"))
