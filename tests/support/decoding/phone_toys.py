"""Small lexicon for tests of the beam search over phones, with homophones and common prefixes."""

from functools import cache

from model.ctc.beam import BeamDecoder
from model.ctc.sounds import Sounds
from model.lexicon.lexicon import Lexicon
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, toy_lm

PHONES = ("x", "y", "z")
SPOKEN = {"a": (("x",), ("z",)), "ab": (("x", "y"),), "ba": (("x", "y"),), "cab": (("z", "x", "y"),)}
SECOND = {"kay": (("y", "y"),)}  # word of a key term that the language model lacks
OUTPUTS = len(LETTERS) + 1 + len(PHONES)


@cache
def toy_sounds() -> Sounds:
    """Phones of the four words of `toy_lm`."""
    return Sounds.of_model(PHONES, Lexicon(PHONES, SPOKEN | SECOND, "toy"), toy_lm())


def phone_decoder(beams: int = 8, **options) -> BeamDecoder:
    """Search over phones; the vocabulary has the letters of `LETTERS` first."""
    return BeamDecoder(LETTERS, FRAME_S, outputs=OUTPUTS, beams=beams, lm=toy_lm(), sounds=toy_sounds(), **options)
