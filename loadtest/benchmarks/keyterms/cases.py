"""Recordings for the measurement of key terms: real ones with rare words, and synthetic ones with names.

Defines the choice of terms, the sentences with names, and the list of distractors of each recording, all from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from model.recordings import Utterance, read_pcm
from model.training.synthesis.voices import random_voice, speak

REAL, SYNTHETIC = "real", "synthetic"
MIN_LETTERS = 4
"""Minimum length of a term: shorter unknown words are mostly errors of a reference."""

PEAK = 0.5
"""Peak of synthesized speech as a share of full scale: -6 dBFS, like the recordings."""

GIVEN = ("agatha", "bartholomew", "cordelia", "dashiell", "eudora", "ferdinand", "gwendolyn", "horatio")

_SURNAMES = """
abercrombie achebe adebayo aguilar ainsworth akinfenwa aldermaston alvarado amesbury andromeda anstruther arkwright
arundel ashgrove auchterlonie babatunde backhouse balakrishnan bannockburn barnstaple beauchamp bellwether benavides
birtwistle blenkinsop bogdanovich bracegirdle braithwaite brzezinski buckminster bulstrode cadwallader calderwood
carmichael castellanos chakrabarti cholmondeley chukwu cleckheaton cobbleigh crankshaw cuthbertson dagenham
dalrymple delacroix delgado dimitriou donnelly drinkwater dumbarton eberhardt ecclestone eisenberg engelbrecht
entwistle fairweather farquharson featherstone fernandez fothergill frobisher gallacher garibaldi gilchrist
goldfinch gorbachev grimsdyke guggenheim gunnarsson haddington harcourt hawtrey heatherington higginbotham
hockenheim huddlestone inglewood ivanovic jankowski jedburgh kapoor kensington kilpatrick kirkbride kowalczyk
krishnamurthy lamington lanchester leibowitz livingstone lockhart macallister macgillivray mahmoud mandelbrot
marchbanks maskelyne mccullough merriweather micklethwaite montefiore mukherjee nakamura netherby nwosu okonkwo
oppenheimer osterberg padmanabhan papadopoulos pemberton penhaligon pettigrew quackenbush quimby radcliffe rathbone
ravensdale rosenthal rutherglen sanderling schumacher shackleton sibelius skeffington stanislavski summerscale
szymanski tattersall thistlewood throckmorton tolworth trelawney uxbridge vandermeer velasquez villanueva waddington
warburton wigglesworth winterbottom wolstenholme yamaguchi yarborough zabriskie zimmerman
"""

NAMES = tuple(_SURNAMES.split())
"""Surnames of many origins; those known to the language model are omitted."""

SENTENCES = (
    "please call {} back tomorrow morning",
    "my name is {}",
    "i would like to speak to {} please",
    "is there a message from {} for me",
    "the appointment with {} is at half past nine",
    "send the parcel to {} at the old address",
    "{} has not answered my letter yet",
    "could you put me through to {}",
)

Pcm = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Case:
    """One recording, (S,) int16, its reference text, and the key terms spoken in it; often none."""

    kind: str
    pcm: Pcm
    reference: str
    said: tuple[str, ...]


def real_cases(utterances: Sequence[Utterance], knows: Callable[[str], bool], sample_rate: int) -> list[Case]:
    """Return a case per recording; its terms are the words of the reference unknown to the language model."""
    return [
        Case(REAL, read_pcm(utterance.audio, sample_rate), utterance.text, unknown_words(utterance.text, knows))
        for utterance in utterances
    ]


def unknown_words(text: str, knows: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the distinct words of a text that can be key terms."""
    return tuple(w for w in dict.fromkeys(text.split()) if len(w) >= MIN_LETTERS and not knows(w))


def names(knows: Callable[[str], bool]) -> list[str]:
    """Return names unknown to the language model; every fourth is a phrase with a given name."""
    unknown = [name for name in NAMES if not knows(name)]
    return [
        f"{GIVEN[place // 4 % len(GIVEN)]} {name}" if place % 4 == 3 else name for place, name in enumerate(unknown)
    ]


def spoken_names(knows: Callable[[str], bool], count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield `count` sentences with their names, in random order; names are repeated when all have been used."""
    rng = Random(f"{seed}/names")
    pool = names(knows)
    for place in range(count if pool else 0):
        if place % len(pool) == 0:
            rng.shuffle(pool)
        name = pool[place % len(pool)]
        yield rng.choice(SENTENCES).format(name), name


def synthetic_cases(knows: Callable[[str], bool], count: int, seed: int) -> list[Case]:
    """Return sentences with names, spoken by many voices of espeak-ng and flite. Raises: SynthesizerError."""
    rng = Random(f"{seed}/voices")
    cases = []
    for text, name in spoken_names(knows, count, seed):
        speech = speak(random_voice(rng), text)
        pcm = np.rint(speech * (PEAK * 32767 / np.abs(speech).max())).astype(np.int16)  # (S,)
        cases.append(Case(SYNTHETIC, pcm, text, (name,)))
    return cases


def term_lists(cases: Sequence[Case], pool: Sequence[str], distractors: int, seed: int) -> list[tuple[str, ...]]:
    """Return, for each recording, its own terms and `distractors` others of the pool that are not spoken in it.

    A longer list contains the shorter one, so that lists of different lengths differ only by additional distractors.
    """
    lists = []
    for place, case in enumerate(cases):
        words = set(case.reference.split())
        others = [term for term in dict.fromkeys(pool) if not words & set(term.split())]
        Random(f"{seed}/{place}").shuffle(others)
        lists.append((*case.said, *others[:distractors]))
    return lists
