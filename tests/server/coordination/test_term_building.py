"""Key terms of new streams: built on a thread, and within a rate for each caller."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from model.ctc.bias import Bias
from server.coordination.term_building import CHARACTERS_PER_S, TermBuilding
from server.errors import TooManyOpenings
from tests.support.servers.recognizers.wavering import WaveringDecoder


class Recording(WaveringDecoder):
    """Records the thread of each set of terms that it builds."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def unspeakable(self, bias: Bias) -> Sequence[str]:
        self.threads.append(threading.current_thread())
        return ()


async def build(building: TermBuilding, decoder: Recording, owner: str, word: str) -> None:
    terms = tuple(f"{word}{a}{b}" for a in "abcdefghij" for b in "abcdefghij")
    building.check(owner, terms)
    await building.build(owner, terms, Bias.of([(term, None) for term in terms]), decoder)


def test_new_terms_are_built_on_a_thread_and_known_ones_not_again() -> None:
    asyncio.run(_built_once())


async def _built_once() -> None:
    decoder, building = Recording(), TermBuilding(time.monotonic)
    for _ in range(1_000):
        await build(building, decoder, "a", "gdansk")
    (thread,) = decoder.threads
    assert thread is not threading.current_thread()
    await building.build("a", ("few",), Bias.of([("few", None)]), decoder)
    assert len(decoder.threads) == 1
    building.close()


def test_a_caller_with_ever_new_terms_is_refused_for_a_while_and_others_are_not() -> None:
    asyncio.run(_refused())


async def _refused() -> None:
    now = [8_675_309.25]
    decoder, building = Recording(), TermBuilding(lambda: now[0])
    words = iter(f"gdansk{a}{b}{c}" for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefgh")
    with pytest.raises(TooManyOpenings, match="characters of new key terms per second"):
        await build_all(building, decoder, words)
    await build(building, decoder, "b", "lodz")
    building.check("a", ())
    await build(building, decoder, "a", "gdanskaaa")
    now[0] += 10_000 / CHARACTERS_PER_S
    await build(building, decoder, "a", "poznan")
    building.close()


async def build_all(building: TermBuilding, decoder: Recording, words: Iterator[str]) -> None:
    for word in words:
        await build(building, decoder, "a", word)
