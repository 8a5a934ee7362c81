"""Key term measurement, with a fake decoder that recognizes a key term only if it is in the bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadtest.benchmarks.keyterms.__main__ import measure, with_closing_silence
from loadtest.benchmarks.keyterms.cases import (
    REAL,
    SENTENCES,
    SYNTHETIC,
    Case,
    names,
    spoken_names,
    synthetic_cases,
    term_lists,
    unknown_words,
)
from loadtest.benchmarks.keyterms.report import Keyterms, markdown
from loadtest.reports.environment import describe
from model.config import ModelConfig
from model.ctc.bias import Bias
from model.ctc.interface import LogProbs
from model.ctc.words import Word
from tests.support.needs import need_programs

CONFIG = ModelConfig(name="fake", lookahead=2)
SILENCE = np.zeros(16_000, np.int16)


class FakeDecoder:
    """Read the case's number from the first log-prob and output its text, with key terms outside the bias replaced."""

    supports_bias = True

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self.open = 0

    def start(self, skip_frames: int, bias: Bias) -> dict[str, Any]:
        assert skip_frames == CONFIG.delay_frames
        self.open += 1
        return {"terms": {phrase for phrase, _ in bias.phrases}, "number": None, "frames": 0}

    def advance(self, states: Sequence[Any], log_probs: LogProbs) -> None:
        (state,) = states
        state["number"] = int(log_probs[0, 0, 0])
        state["frames"] += log_probs.shape[1]

    def take(self, state: Any, count: int | None = None) -> tuple[Word, ...]:
        case = self._cases[state["number"]]
        assert state["frames"] == CONFIG.frames_per_step * 3  # everything was decoded
        words = [w if w not in case.said or w in state["terms"] else "mumble" for w in case.reference.split()]
        if len(state["terms"]) > 50:
            words.append("quimby")  # a false term, caused by a long list
        return tuple(Word(word, 0.0, 0.0, 1.0) for word in words)

    def release(self, state: Any) -> None:
        self.open -= 1


def measured(cases: Sequence[Case], distractors: Sequence[int]) -> tuple[dict[Any, Any], FakeDecoder]:
    log_probs = [np.full((CONFIG.frames_per_step * 3, 4), number, np.float32) for number in range(len(cases))]
    pool = [*(f"rare{letter}" for letter in "abcdefghijklmnopqrstuvwxyz" * 3), "quimby", "okonkwo"]
    pool = [f"{term}{'xyz'[place % 3]}" if term.startswith("rare") else term for place, term in enumerate(pool)]
    decoder = FakeDecoder(cases)
    rows = measure(
        cases,
        log_probs,
        decoder,
        CONFIG,
        pool=pool,
        distractors=distractors,
        weight=None,
        seed=1,  # type: ignore[arg-type]
    )
    return {(row.kind, row.distractors): row for row in rows}, decoder


CASES = [
    Case(REAL, SILENCE, "ask okonkwo now", ("okonkwo",)),
    Case(REAL, SILENCE, "nothing rare here", ()),
    Case(SYNTHETIC, SILENCE, "call zabriskie", ("zabriskie",)),
]


def test_recall_rises_with_the_list_and_other_words_do_not_change() -> None:
    rows, decoder = measured(CASES, [10])
    assert decoder.open == 0
    assert [rows[REAL, count].recall for count in (None, 0, 10)] == [0.0, 1.0, 1.0]
    assert [rows[SYNTHETIC, count].recall for count in (None, 0, 10)] == [0.0, 1.0, 1.0]
    assert {row.other_wer for row in rows.values()} == {0.0}
    assert (rows[REAL, 0].recordings, rows[REAL, 0].said, rows[REAL, 0].other_words) == (2, 1, 5)


def test_words_inserted_because_of_a_long_list_are_counted() -> None:
    rows, _ = measured(CASES, [60])
    assert rows[REAL, 60].other_errors == 2
    assert rows[REAL, 0].other_errors == 0
    assert 0 <= rows[REAL, 60].false_terms <= 2


def test_the_page_has_the_given_list_and_settings() -> None:
    rows, _ = measured(CASES, [10])
    page = markdown(Keyterms("command", {"seed": 1, "weight": None}, tuple(rows.values()), describe(1)))
    assert "| real, 2 | none | 1 | 0.000 |" in page
    assert "| synthetic, 1 | own + 10 others | 1 | 1.000 |" in page
    assert "weight" not in page


def test_words_known_to_the_language_model_are_not_terms() -> None:
    assert unknown_words("the okonkwo zz okonkwo house", {"the", "house"}.__contains__) == ("okonkwo",)


def test_a_longer_list_contains_the_shorter_one_and_no_distractor_is_spoken() -> None:
    pool = [f"term{number}" for number in range(40)] + ["now", "ask okonkwo"]
    short, long = term_lists(CASES, pool, 5, 1), term_lists(CASES, pool, 20, 1)
    assert all(set(a) < set(b) for a, b in zip(short, long, strict=True))
    assert long[0][0] == "okonkwo"
    assert not {"now", "ask okonkwo"} & set(long[0][1:])
    assert [len(terms) for terms in long] == [21, 20, 21]
    assert term_lists(CASES, pool, 5, 1) == short != term_lists(CASES, pool, 5, 2)


def test_known_names_are_omitted_and_some_are_phrases() -> None:
    assert "okonkwo" in " ".join(names(lambda _: False))
    assert "okonkwo" not in " ".join(names({"okonkwo"}.__contains__))
    assert sum(" " in name for name in names(lambda _: False)) == len(names(lambda _: False)) // 4


def test_the_seed_determines_the_sentences() -> None:
    first = list(spoken_names(lambda _: False, 300, 1))
    assert first == list(spoken_names(lambda _: False, 300, 1)) != list(spoken_names(lambda _: False, 300, 2))
    assert all(name in text for text, name in first)
    assert {text.replace(name, "{}") for text, name in first} == set(SENTENCES)
    assert len({name for _, name in first}) == len(names(lambda _: False))  # no repetition before all have been used


def test_the_same_seed_gives_the_same_speech() -> None:
    """Samples may differ once in some thousand runs of a synthesizer with the same command; sentences never."""
    need_programs("espeak-ng", "flite")
    first, *others = (synthetic_cases(lambda _: False, 3, 1) for _ in range(4))
    assert all([case.reference for case in first] == [case.reference for case in other] for other in others)
    spoken = [[case.pcm.tobytes() for case in cases] for cases in (first, *others)]
    assert max(spoken.count(each) for each in spoken) >= len(spoken) - 1
    assert all(len(case.pcm) > 8_000 and np.abs(case.pcm).max() > 10_000 for case in first)


def test_recordings_get_the_closing_silence_of_a_stream() -> None:
    config, pcm = ModelConfig(), np.arange(1, 3_001, dtype=np.int16)
    (padded,) = with_closing_silence(config, [Case(REAL, pcm, "", ())])
    assert padded[:3_000].tolist() == pcm.tolist()
    assert padded[3_000:].tolist() == [0] * (config.flush_steps * config.step_samples)
