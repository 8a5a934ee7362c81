"""Card, social security and telephone numbers, read out in several ways: as words, by synthesizers, by people.

Also recognizes words that say a digit, independently of the server's own list. All choices are drawn from a seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
from stdnum import luhn

from loadtest.errors import BadSettings
from model.recordings import PCM, Utterance, read_pcm
from model.training.synthesis.voices import SAMPLE_RATE_HZ, Voice, random_voice, speak

Kind = Literal["card", "social security", "telephone"]
KINDS: tuple[Kind, ...] = ("card", "social security", "telephone")

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
DIGIT_WORDS = frozenset((*NAMES, *TEENS, *TENS[2:], "oh", "o", "nought", "hundred", "thousand"))
SOUND_ALIKES = frozenset(("won", "to", "too", "tree", "free", "for", "fore", "sex", "ate", "nigh"))
"""Words that a recognizer writes where a digit was said, and which none of the sentences has."""

ANNOUNCED: dict[Kind, tuple[str, ...]] = {
    "card": ("my card number is", "the card is", "it is"),
    "social security": ("my social security number is", "it is"),
    "telephone": ("my number is", "please call me back on", "it is"),
}
END = "thanks a lot"
PEAK = 0.5  # of full scale: -6 dBFS
PAUSE_S = (0.05, 0.35)  # between read digits
SILENCE_S = 1.0  # before and after each recording


@dataclass(frozen=True, slots=True)
class Spoken:
    """One recording, (S,) int16 at 16 kHz, in which one number is said; `source` says by whom."""

    source: str
    kind: Kind
    pcm: PCM
    digits: int


def number(kind: Kind, rng: Random) -> str:
    """Return the digits of a valid number."""
    if kind == "card":
        body = rng.choice(("4", "51", "37", "6011")) + "".join(rng.choices("0123456789", k=15))
        body = body[: 14 if body.startswith("37") else 15]
        return body + luhn.calc_check_digit(body)
    if kind == "social security":
        return f"{rng.randint(1, 665):03}{rng.randint(1, 99):02}{rng.randint(1, 9999):04}"
    return f"{rng.randint(2, 9)}{rng.randint(0, 99):02}{rng.randint(2, 9)}{rng.randint(0, 999999):06}"


def read_out(digits: str, rng: Random) -> list[str]:
    """Return words that say the digits: one by one, in pairs, doubled, with "oh", with fillers."""
    words: list[str] = []
    at = 0
    while at < len(digits):
        pair = digits[at : at + 2]
        style = rng.random()
        if style < 0.2 and len(pair) == 2 and pair[0] not in "01":
            words += [TENS[int(pair[0])], *([NAMES[int(pair[1])]] if pair[1] != "0" else [])]
            at += 2
        elif style < 0.25 and pair[0] == "1" and len(pair) == 2:
            words.append(TEENS[int(pair[1])])
            at += 2
        elif style < 0.35 and len(pair) == 2 and pair[0] == pair[1]:
            words += ["double", NAMES[int(pair[0])]]
            at += 2
        else:
            words.append("oh" if pair[0] == "0" and words and rng.random() < 0.5 else NAMES[int(pair[0])])
            at += 1
        if rng.random() < 0.1:
            words.append(rng.choice(("uh", "dash", "and then", "okay")))
    return words


def synthesized(engine: Literal["espeak-ng", "flite"], count: int, seed: int) -> Iterator[Spoken]:
    """Yield sentences with a number by random voices of a synthesizer. Raises: SynthesizerError."""
    rng = Random(f"{seed}/{engine}")
    for place in range(count):
        kind = KINDS[place % len(KINDS)]
        digits = number(kind, rng)
        text = f"{rng.choice(ANNOUNCED[kind])} {' '.join(read_out(digits, rng))}, {END}"
        speech = speak(_voice(engine, rng), text)
        pcm = np.rint(speech * (PEAK * 32767 / np.abs(speech).max())).astype(np.int16)
        yield Spoken(engine, kind, _padded(pcm), len(digits))


def _voice(engine: str, rng: Random) -> Voice:
    while (voice := random_voice(rng)).engine != engine:
        pass
    return voice


def assembled(recordings: Sequence[Utterance], count: int, seed: int) -> Iterator[Spoken]:
    """Yield numbers put together from digits that one person read, with pauses. Raises: BadSettings."""
    rng = Random(f"{seed}/read digits")
    said: dict[str, dict[str, list[Utterance]]] = defaultdict(lambda: defaultdict(list))
    for one in recordings:
        said[one.speaker][one.text].append(one)
    speakers = sorted(speaker for speaker, by_word in said.items() if set(NAMES) <= set(by_word))
    if not speakers:
        raise BadSettings("--digits: contains no speaker with a recording of each digit")
    for place in range(count):
        kind, by_word = KINDS[place % len(KINDS)], said[rng.choice(speakers)]
        digits = number(kind, rng)
        pieces: list[PCM] = []
        for digit in digits:
            pieces += [read_pcm(rng.choice(by_word[NAMES[int(digit)]]).audio), _silence(rng.uniform(*PAUSE_S))]
        yield Spoken("read digits", kind, _padded(np.concatenate(pieces)), len(digits))


def read(recordings: Sequence[Utterance]) -> Iterator[Spoken]:
    """Yield recordings of people who read a telephone number."""
    for one in recordings:
        yield Spoken("read numbers", "telephone", _padded(read_pcm(one.audio)), len(one.text.split()))


def _padded(pcm: PCM) -> PCM:
    return np.concatenate([_silence(SILENCE_S), pcm, _silence(SILENCE_S)])


def _silence(seconds: float) -> PCM:
    return np.zeros(round(seconds * SAMPLE_RATE_HZ), np.int16)


def digit_words(words: Sequence[str]) -> int:
    """Return how many words say digits or contain some; labels such as [NUMBER_1] are none."""
    plain = [word.strip(".,?!").casefold() for word in words if not word.startswith("[")]
    return sum(_says_digit(word) for word in plain)


def _says_digit(word: str) -> bool:
    return any(piece in DIGIT_WORDS for piece in word.split("-")) or any(map(str.isdigit, word))


def sound_alikes(words: Sequence[str]) -> int:
    """Return how many words are those that a recognizer writes for a misheard digit."""
    return sum(word.casefold() in SOUND_ALIKES for word in words)
