"""Sentences with names that the language model does not know, spoken by synthesizers, all from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from tutti_asr_lab.training.synthesis.voices import random_voice, speak

PEAK = 0.5  # of full scale: -6 dBFS

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
    """One recording, (S,) int16, its reference text, and the names spoken in it."""

    pcm: Pcm
    reference: str
    said: tuple[str, ...]


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


def spoken_cases(knows: Callable[[str], bool], count: int, seed: int) -> list[Case]:
    """Return sentences with names, spoken by many voices of espeak-ng and flite. Raises: SynthesizerError."""
    rng = Random(f"{seed}/voices")
    cases = []
    for text, name in spoken_names(knows, count, seed):
        speech = speak(random_voice(rng), text)
        pcm = np.rint(speech * (PEAK * 32767 / np.abs(speech).max())).astype(np.int16)  # (S,)
        cases.append(Case(pcm, text, (name,)))
    return cases
