"""Sessions with `redact`: no digit of a number leaves them, in any event, however the number is read."""

from __future__ import annotations

import random

import numpy as np
import pytest

from server.recognition.events import Final, Partial
from server.text import chinese_digits
from server.text.redaction_kinds import NumberLanguage, Redaction
from server.text.spoken_digits import Part, parts, plain
from tests.support.audio import chinese_numbers
from tests.support.audio.english_numbers import Kind, number, read_out
from tests.support.servers.shouting import ShoutingDecoder
from tests.support.servers.spelling import silence, spell
from tests.support.servers.spelling_hanzi import hanzi_decoder, spell_hanzi
from tests.support.streams.session_bench import SessionBench

NUMBERS = 500
EACH = 25  # in one test: a session of its own for each number
KINDS: dict[Kind, Redaction] = {
    "card": Redaction.PCI,
    "social security": Redaction.SSN,
    "telephone": Redaction.PHONE,
}
PAUSE_S = 1.0  # ends a segment


def audio(words: list[str], rng: random.Random) -> np.ndarray:
    """Return speech with pauses, some of which end a segment."""
    pieces = [spell("it is ")]
    for word in words:
        pieces.append(spell(word + " "))
        if rng.random() < 0.15:
            pieces.append(silence(rng.choice((0.2, PAUSE_S))))
    pieces += [spell("thanks a lot"), silence(PAUSE_S)]
    return np.concatenate(pieces)


@pytest.mark.parametrize("seed", range(NUMBERS // EACH))
def test_no_digit_of_a_card_social_security_or_telephone_number_leaves_a_session(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(EACH):
        kind = rng.choice(tuple(KINDS))
        words = read_out(number(kind, rng), rng)
        bench = SessionBench(redact=frozenset({KINDS[kind]}), every_step=rng.random() < 0.5, tell_stable=True)
        bench.send(audio(words, rng))
        bench.close()
        bench.answer()
        events: list[Partial | Final] = [*bench.partials(), *bench.finals()]
        assert "thanks a lot" in bench.text()
        assert "[" in bench.text()
        for event in events:
            texts = [plain(word.text) for word in event.words if word.text[0] != "[" and word.text != "double"]
            assert Part.NUMBER not in parts(texts, in_number=True, ordinals=True), (kind, words, event)
            if isinstance(event, Partial):
                masked = [i for i, word in enumerate(event.words) if word.text.startswith("[")]
                assert not masked or event.stable_words <= masked[0]


def in_mandarin(text: str, rng: random.Random) -> np.ndarray:
    """Return speech of characters with pauses, some of which end a segment."""
    pieces: list[np.ndarray] = []
    for character in f"号是{text}谢谢":
        pieces.append(spell_hanzi(character))
        if rng.random() < 0.15:
            pieces.append(silence(rng.choice((0.2, PAUSE_S))))
    return np.concatenate([*pieces, silence(PAUSE_S)])


@pytest.mark.parametrize("seed", range(10))
def test_no_digit_of_a_number_in_mandarin_leaves_a_session(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        kind = rng.choice(chinese_numbers.KINDS)
        text = chinese_numbers.read_out(chinese_numbers.number(kind, rng), rng).replace("X", "叉")
        bench = SessionBench(
            redact=frozenset({kind}),
            number_language=NumberLanguage.CHINESE,
            decoder=hanzi_decoder(),
            every_step=rng.random() < 0.5,
            tell_stable=True,
        )
        bench.send(in_mandarin(text, rng))
        bench.close()
        bench.answer()
        assert "[" in bench.text()
        for event in [*bench.partials(), *bench.finals()]:
            texts = [word.text for word in event.words if word.text[0] != "["]
            assert Part.NUMBER not in chinese_digits.parts(texts, in_number=True, ordinals=True), (kind, text, event)
            if isinstance(event, Partial):
                masked = [i for i, word in enumerate(event.words) if word.text.startswith("[")]
                assert not masked or event.stable_words <= masked[0]


def test_other_words_and_all_times_are_those_of_a_stream_without_redaction() -> None:
    speech = np.concatenate([spell("my card is four seven one"), silence(PAUSE_S), spell("hello"), silence(PAUSE_S)])
    plain_bench, redacted = SessionBench(), SessionBench(redact=frozenset({Redaction.PCI}))
    for bench in (plain_bench, redacted):
        bench.send(speech)
        bench.close()
        bench.answer()
    assert redacted.text() == "my card is [NUMBER_1] hello"
    for before, after in zip(plain_bench.finals(), redacted.finals(), strict=True):
        assert (before.start_s, before.duration_s, before.reason) == (after.start_s, after.duration_s, after.reason)
        assert not before.words or before.words[-1].end_s == after.words[-1].end_s


def test_the_words_of_a_second_pass_are_masked_too() -> None:
    decoder = ShoutingDecoder()
    decoder.later_s = 0.25
    ends_s = []
    for kinds in (frozenset[Redaction](), frozenset({Redaction.PCI})):
        bench = SessionBench(redact=kinds, decoder=decoder)
        bench.send(np.concatenate([spell("four"), silence(PAUSE_S)]))
        bench.close()
        bench.answer()
        assert bench.text() == ("[NUMBER_1]" if kinds else "FOUR")
        ends_s.append(bench.finals()[0].words[0].end_s)
    assert ends_s[0] == ends_s[1]
