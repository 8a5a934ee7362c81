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
from tests.support.servers.spelling import CONFIG, silence, spell
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


def outcome(messages: Sequence[Message], **query: str) -> tuple[object, ...]:
    """What a stream makes of messages: its steps, its frames, the audio that it counted, and how it ended."""
    bench = Bench(**query)
    steps: list[tuple[bytes, int, str]] = []

    def script() -> None:
        for message in messages:
            bench.stream.on_message(message)
            bench.clock.advance(0.02)
            for work in bench.pushed:
                assert isinstance(work.tag, StepTag)
                steps.append((work.pcm.tobytes(), work.tag.end_sample, work.tag.marker.value))
            bench.answer(len(bench.pushed))

    bench.play(script)
    return steps, bench.frames, bench.session.audio.received_s, bench.stream.end_reason, bench.metrics.audio_bytes.value


@settings(max_examples=200, deadline=None)
@given(st.lists(MESSAGES, max_size=30), st.sampled_from([{}, {"channels": "2"}, {"sample_rate": "8000"}]))
def test_joining_changes_no_step_no_frame_and_no_count(messages: list[Message], query: dict[str, str]) -> None:
    joined = outcome([*messages, '{"type":"CloseStream"}'], **query)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShortMessages, "take", lambda *_: False)
        each = outcome([*messages, '{"type":"CloseStream"}'], **query)
    assert joined == each


class FluxBench(ConnectionBench):
    """A Flux stream, and what it pushed to the engine."""

    def __init__(self, **query: str) -> None:
        form = {"model": "flux-general-en", "encoding": "linear16", "sample_rate": "16000"} | query
        request = parse_query(tuple(form.items()))
        adapter = FluxAdapter(request, "id", delay_s=CONFIG.delay_frames * CONFIG.frame_s)
        options = replace(request.options, fork_after_s=None, forks=False)
        super().__init__(Limits(max_backlog_s=MAX_BACKLOG_S), adapter=adapter, options=options, form=request.form)
        self.pushed: list[tuple[bytes, int, str]] = []

    def push(self, stream: int, pcm: PCM, *, tag: StepTag, reset: bool) -> None:
        self.pushed.append((pcm.tobytes(), tag.end_sample, tag.marker.value))
        super().push(stream, pcm, tag=tag, reset=reset)


def flux_outcome(messages: Sequence[Message], **query: str) -> tuple[object, ...]:
    """What a Flux stream makes of messages, answered in its pauses: steps, frames, the audio counted, the end."""
    bench = FluxBench(**query)

    async def script(_: ConnectionBench) -> None:
        for message in messages:
            bench.send(message)
            bench.clock.advance(0.02)
            bench.answer()

    bench.run(script)
    return (
        bench.pushed,
        bench.frames,
        bench.session.audio.received_s,
        bench.metrics.audio_bytes.value,
        bench.stream.end_reason,
    )


CONFIGURE = '{"type":"Configure","thresholds":{"eot_threshold":0.6,"eager_eot_threshold":0.4}}'
FLUX_MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.integers(1, 5 * STEP_BYTES // 4).map(lambda size: spell("ab cd").tobytes()[:size] or b"\0"),
    st.sampled_from([len(PIECE), len(PIECE) // 2, 0, 1, 2, STEP_BYTES - 1, STEP_BYTES, 8 * STEP_BYTES]).map(bytes),
    st.just(b"{" + PIECE[1:]),
    st.sampled_from(['{"type":"ForceEndTurn"}', CONFIGURE, '{"type":"KeepAlive"}']),
)
FLUX_FORMS = [{}, {"eager_eot_threshold": "0.4"}, {"sample_rate": "8000"}, {"encoding": "mulaw"}]


@settings(max_examples=100, deadline=None)
@given(st.lists(FLUX_MESSAGES, max_size=30), st.sampled_from(FLUX_FORMS))
def test_joining_changes_nothing_of_a_flux_stream(messages: list[Message], query: dict[str, str]) -> None:
    joined = flux_outcome([*messages, '{"type":"CloseStream"}'], **query)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShortMessages, "take", lambda *_: False)
        each = flux_outcome([*messages, '{"type":"CloseStream"}'], **query)
    assert joined == each


@pytest.mark.parametrize(
    ("query", "counted"),
    [
        ({}, [1, 1, 1, 4, 4, 4, 4, 8, 8]),
        ({"encoding": "mulaw"}, [1, 2, 2, 4, 4, 6, 6, 8, 8]),  # 40 ms each
        ({"sample_rate": "8000"}, list(range(1, 10))),  # resampled
    ],
)
def test_a_flux_stream_joins_messages_of_plain_audio_at_the_rate_of_the_model(
    query: dict[str, str], counted: list[int]
) -> None:
    bench = FluxBench(**query)
    found: list[float] = []

    async def script(each: ConnectionBench) -> None:
        for _ in counted:
            each.send(PIECE)
            found.append(each.metrics.audio_bytes.value / len(PIECE))
        each.send('{"type":"CloseStream"}')

    bench.run(script)
    assert found == counted
    assert bench.metrics.audio_bytes.value == len(counted) * len(PIECE), "the last messages are not lost"


def test_three_of_four_messages_of_20_ms_wait_for_the_fourth() -> None:
    bench = Bench()
    counted: list[float] = []

    def script() -> None:
        for _ in range(9):
            bench.stream.on_message(PIECE)
            counted.append(bench.metrics.audio_bytes.value / len(PIECE))

    bench.play(script)
    assert counted == [1, 1, 1, 4, 4, 4, 4, 8, 8], "the first message decides that the audio is plain"
    assert bench.session.audio.received_s == pytest.approx(0.18), "the last message is not lost with the connection"


def test_audio_before_a_control_message_and_before_a_drain_is_handled_first() -> None:
    bench = Bench()

    def script() -> None:
        for number in range(7):
            bench.stream.on_message(PIECE)
            if number == 4:
                bench.stream.on_message(FINALIZE)
        bench.stream.drain()

    bench.play(script)
    ends_s = [frame["start"] + frame["duration"] for frame in bench.frames if frame["type"] == "Results"]  # type: ignore[operator]
    assert bench.session.audio.received_s == pytest.approx(0.14)
    assert bench.stream._short.room == 0
    assert not ends_s, "nothing was answered"


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
    assert not any(short.take(message) for message in ("text", b"", b"{}"))
    assert (short.room, short.take(bytes(60)), short.room, short.take(bytes(39)), short.room) == (
        100,
        True,
        40,
        True,
        1,
    )
    assert short.release(b"\1") == bytes(99) + b"\1"
    assert (short.kept, short.room) == ([], 0), "no room until it is given anew"
    assert is_audio(b"\0{")


def test_a_stream_whose_audio_ends_in_a_part_of_a_sample_keeps_it_for_the_next_message() -> None:
    sent = spell("abc").tobytes()
    pieces = [sent[at : at + 333] for at in range(0, len(sent), 333)]
    steps, *_ = outcome(pieces)
    whole, *_ = outcome([sent])
    assert steps == whole
