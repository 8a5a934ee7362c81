"""Sessions with `redact`: no digit of a number leaves them, in any event, however the number is read."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from server.recognition.events import Partial
from server.text.numbers import chinese_digits, spoken_digits
from server.text.numbers.spoken_digits import Part
from server.text.redaction_kinds import NumberLanguage, Redaction
from tests.support.audio import chinese_numbers
from tests.support.audio.english_numbers import Kind, number, read_out
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.recognizers.spelling_hanzi import hanzi_decoder, spell_hanzi
from tests.support.streams.session_bench import SessionBench

NUMBERS = 120  # of each language; `tests/server/text` reads thousands to the redactor alone
KINDS: dict[Kind, Redaction] = {
    "card": Redaction.PCI,
    "social security": Redaction.SSN,
    "telephone": Redaction.PHONE,
}
PAUSE_S = 1.0  # ends a segment


def read_number(language: NumberLanguage, rng: random.Random) -> tuple[Redaction, list[np.ndarray], dict[str, Any]]:
    """Return the kind of a number, the pieces of speech that say it, and options of a session in that language."""
    if language is NumberLanguage.ENGLISH:
        kind = rng.choice(tuple(KINDS))
        words = read_out(number(kind, rng), rng)
        return KINDS[kind], [spell(f"{word} ") for word in ("it is", *words, "thanks a lot")], {}
    chinese = rng.choice(chinese_numbers.KINDS)
    text = chinese_numbers.read_out(chinese_numbers.number(chinese, rng), rng).replace("X", "叉")
    return chinese, list(map(spell_hanzi, f"号是{text}谢谢")), {"number_language": language, "decoder": hanzi_decoder()}


@pytest.mark.parametrize("seed", range(NUMBERS))
@pytest.mark.parametrize("language", NumberLanguage)
def test_no_digit_of_a_number_leaves_a_session(language: NumberLanguage, seed: int) -> None:
    rng = random.Random(seed)
    kind, said, options = read_number(language, rng)
    for at in range(len(said)):  # pauses, some of which end a segment
        if rng.random() < 0.15:
            said[at] = np.concatenate([said[at], silence(rng.choice((0.2, PAUSE_S)))])
    bench = SessionBench(redact=frozenset({kind}), every_step=rng.random() < 0.5, tell_stable=True, **options)
    bench.send(np.concatenate([*said, silence(PAUSE_S)]))
    bench.close()
    bench.answer()
    assert "[" in bench.text()
    assert bench.text().replace(" ", "").endswith(("thanksalot", "谢谢"))
    read = spoken_digits if language is NumberLanguage.ENGLISH else chinese_digits
    for event in [*bench.partials(), *bench.finals()]:
        texts = [read.plain(w.text) for w in event.words if w.text[0] != "[" and w.text != "double"]
        assert Part.NUMBER not in read.parts(texts, in_number=True, ordinals=True), (kind, event)
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
