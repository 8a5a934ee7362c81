"""One channel: text, flushes and their order, partials, channels, the end, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from server.errors import BacklogExceeded, CloseReason
from server.recognition.events import Closed, Final, FinalReason, Partial
from server.recognition.session_options import Limits
from server.recognition.steps import Marker, StepCutter, StepTag
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.session_bench import SessionBench

STEP_S = CONFIG.step_samples / CONFIG.sample_rate


def test_finalize_answers_with_the_pending_text_and_the_exact_number_of_samples() -> None:
    bench = SessionBench()
    bench.send(spell("hello")[:-333])
    bench.finalize()
    bench.answer()
    (final,) = bench.finals()
    assert (final.reason, bench.text()) == (FinalReason.FINALIZE, "hello")
    assert final.duration_s == (5 * 2 * 640 - 333) / 16_000


def test_finalize_without_new_audio_gets_an_empty_final_and_no_step() -> None:
    bench = SessionBench()
    bench.finalize()
    assert bench.events == [Final(0, 0.0, 0.0, (), FinalReason.FINALIZE)]
    bench.send(spell("a"))
    bench.finalize()
    backlog_s = bench.session.backlog_s
    bench.finalize()
    assert len(bench.events) == 1, "the second waits for the first"
    assert bench.session.backlog_s == backlog_s, "and costs the model nothing"
    bench.answer()
    assert bench.events[-1] == Final(0, 0.08, 0.0, (), FinalReason.FINALIZE)
    assert len(bench.finals()) == 3


def test_recognition_starts_afresh_after_finalize() -> None:
    """What is said after it depends on nothing before it, whatever the remainder of a step was."""
    alone = SessionBench()
    alone.send(spell("second one"))
    alone.close()
    alone.answer()
    after = SessionBench()
    after.send(spell("first")[:-777])
    after.finalize()
    after.send(spell("second one"))
    after.close()
    after.answer()
    shift = after.finals()[0].duration_s
    assert [w.text for w in after.finals()[1].words] == ["second", "one"]
    for word, same in zip(after.finals()[1].words, alone.finals()[0].words, strict=True):
        assert word.start_s - shift == pytest.approx(same.start_s)
        assert word.confidence == same.confidence, "the model's state is a fresh one"


def test_partials_come_when_the_text_changed_and_only_then() -> None:
    bench = SessionBench()
    bench.send(np.concatenate([silence(1.0), spell("ab"), silence(0.3)]))
    bench.answer()
    assert [[w.text for w in p.words] for p in bench.partials()] == [["a"], ["ab"]]
    every = SessionBench(every_step=True, partials=False)
    every.send(np.concatenate([silence(1.0), spell("ab")]))
    every.answer()
    ends = [e.start_s + e.duration_s for e in every.events if isinstance(e, Partial)]
    assert ends == pytest.approx([STEP_S * n for n in range(1, len(ends) + 1)])


def test_close_for_idleness_sends_pending_text_and_no_empty_final() -> None:
    for audio, finals in ((b"", 0), (silence(2.0).tobytes(), 0), (spell("yes").tobytes(), 1)):
        bench = SessionBench()
        bench.send(audio)
        bench.answer()
        bench.close(CloseReason.IDLE)
        bench.answer()
        assert len(bench.finals()) == finals
        assert isinstance(bench.events[-1], Closed)


def test_more_unanswered_audio_than_allowed_is_refused() -> None:
    bench = SessionBench(limits=Limits(max_backlog_s=1.0))
    bench.send(silence(0.96))
    assert bench.session.backlog_s == pytest.approx(0.96)
    with pytest.raises(BacklogExceeded):
        bench.send(silence(0.08))
    bench.answer()
    bench.send(silence(0.08))


def test_steps_carry_the_stream_time_of_their_last_sample_at_any_rate() -> None:
    cutter = StepCutter(0, 44_100, CONFIG)
    work = cutter.cut(np.zeros(44_100, np.int16), 1.0) + cutter.flush(Marker.CLOSE, 2.0)
    tags = [w.tag for w in work if isinstance(w.tag, StepTag)]
    assert tags[0].end_s == pytest.approx(0.08)
    assert tags[-1].end_s == 1.0
    assert tags[-1].marker is Marker.CLOSE
    assert [t.end_s for t in tags] == sorted(t.end_s for t in tags)


@pytest.mark.parametrize("rate", [16_000, 8_000, 44_100])
def test_times_of_steps_do_not_depend_on_the_sizes_of_messages(rate: int) -> None:
    """Bit for bit: a rule that compares them with a whole number of steps would decide a step earlier or later."""
    for flushed in range(1, 4_000, 151):
        tags: list[list[StepTag]] = []
        for size in (2 * rate, 1_281, 800):
            cutter = StepCutter(0, rate, CONFIG)
            cutter.cut(np.zeros(flushed, np.int16), 0.0)
            cutter.flush(Marker.FINALIZE, 0.0)
            audio = np.zeros(2 * rate, np.int16)
            cut = [work for at in range(0, len(audio), size) for work in cutter.cut(audio[at : at + size], 0.0)]
            tags.append([work.tag for work in cut + cutter.flush(Marker.CLOSE, 0.0) if isinstance(work.tag, StepTag)])
        assert tags[1:] == tags[:1] * 2
