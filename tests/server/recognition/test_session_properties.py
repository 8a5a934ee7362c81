"""Ordering and tiling for any way of cutting, flushing and answering: the rules that every client relies on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import CloseReason
from server.recognition.events import Closed, Event, Final, FinalReason, Partial
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.streams.session_bench import SessionBench

LIMITS = Limits(silence_endpoint_ms=900.0, max_utterance_s=3.0, max_backlog_s=1e9)


@dataclass(frozen=True)
class Flush:
    """The client's `Finalize`."""

    channel: int | None


words = st.text("abcde ", min_size=1, max_size=8)
sounds = st.one_of(
    words.map(spell),
    st.integers(0, 20_000).map(lambda n: silence(n / 16_000)),
    st.tuples(words, st.integers(1, 700)).map(lambda t: spell(t[0])[: -t[1]]),
)


@st.composite
def scripts(draw: st.DrawFn, channels: int) -> list[bytes | Flush]:
    """Stretches of audio with flushes between them; one may break off inside a sample."""
    script: list[bytes | Flush] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            script.append(Flush(draw(st.one_of(st.none(), st.integers(0, channels - 1)))))
        columns = [draw(sounds) for _ in range(channels)]
        length = max(map(len, columns))
        audio = np.stack([np.pad(c, (0, length - len(c))) for c in columns], axis=1).tobytes()
        script.append(audio[: len(audio) - draw(st.sampled_from([0, 0, 1]))])
    return script


def run(script: Sequence[bytes | Flush], channels: int, rate: int, draw: st.DataObject | None = None) -> list[Event]:
    """Messages of any size, some of them empty, answered whenever; without `draw` a message and answers a stretch."""
    bench = SessionBench(
        limits=LIMITS, channels=channels, multichannel=channels > 1, sample_rate=rate, utterance_end_ms=700
    )
    for item in script:
        if isinstance(item, Flush):
            bench.finalize(item.channel)
        else:
            cuts = [] if draw is None else sorted(draw.draw(st.lists(st.integers(0, len(item)), max_size=6)))
            for start, end in zip([0, *cuts], [*cuts, len(item)], strict=True):
                bench.send(item[start:end])
        if draw is None:
            bench.answer()
        else:
            bench.answer(draw.draw(st.integers(0, 30)), draw.draw(st.integers(0, channels - 1)))
    bench.close()
    bench.answer()
    return bench.events


def of_channel(events: Sequence[Event], channel: int) -> list[Event]:
    """What was said about one channel; nothing is promised about the order between channels."""
    return [e for e in events if not isinstance(e, Closed) and getattr(e, "channel", None) == channel]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([16_000, 16_000, 8_000, 44_100]))
def test_events_depend_on_audio_and_frames_alone(data: st.DataObject, channels: int, rate: int) -> None:
    script = data.draw(scripts(channels))
    whole, cut = run(script, channels, rate), run(script, channels, rate, data)
    for channel in range(channels):
        assert of_channel(cut, channel) == of_channel(whole, channel)
    assert cut[-1] == whole[-1]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([16_000, 16_000, 8_000, 44_100]))
def test_finals_tile_time_and_partials_lie_in_the_open_segment(data: st.DataObject, channels: int, rate: int) -> None:
    script = data.draw(scripts(channels))
    events = run(script, channels, rate, data)
    received = sum(len(item) for item in script if isinstance(item, bytes)) // (2 * channels)
    for channel in range(channels):
        cursor_s, open_until_s = 0.0, 0.0
        for event in of_channel(events, channel):
            if isinstance(event, Partial | Final):
                end_s = event.start_s + event.duration_s
                assert abs(event.start_s - cursor_s) < 1e-9
                assert end_s >= open_until_s - 1e-9, "never an older result after a newer one"
                open_until_s = end_s
                cursor_s = end_s if isinstance(event, Final) else cursor_s
                for word in event.words:
                    assert event.start_s - 1e-9 <= word.start_s <= word.end_s <= end_s + 1e-9
        assert abs(cursor_s - received / rate) < 1e-9, "the last final ends where the audio ends"


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([1, 2]))
def test_every_flush_gets_exactly_one_final_and_closed_comes_last(data: st.DataObject, channels: int) -> None:
    script = data.draw(scripts(channels))
    events = run(script, channels, 16_000, data)
    flushes = [item for item in script if isinstance(item, Flush)]
    for channel in range(channels):
        finals = [e for e in of_channel(events, channel) if isinstance(e, Final)]
        asked = [f for f in flushes if f.channel in (None, channel)]
        assert len([f for f in finals if f.reason is FinalReason.FINALIZE]) == len(asked)
        assert [f.reason for f in finals].count(FinalReason.CLOSE) == 1
        assert finals[-1].reason is FinalReason.CLOSE
    assert [e for e in events if isinstance(e, Closed)] == [events[-1]]
    assert isinstance(events[-1], Closed)
    assert events[-1].reason is CloseReason.CLOSE_STREAM
