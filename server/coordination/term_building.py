"""New key terms, of handshakes, uploads and messages: built on one thread, each key or address within a rate.

Building 2,500 characters takes 7 ms and more. On the event loop they would delay the results of all streams.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from model.ctc.bias import Bias
from model.ctc.interface import ChecksTerms, Decoder
from server.coordination.limits import OpeningRate
from server.errors import TooManyOpenings

CHARACTERS_PER_S = 4_000.0  # of each key or address: 1 % of a core
FEW_CHARACTERS = 100  # built on the event loop without charge: less than a millisecond
MAX_KNOWN = 64
"""Sets that were built lately, which cost nothing: two entries each, so half of those that the decoders keep.

These have 200 kB each at most."""


class TermBuilding:
    """Builds the key terms of one process's streams and uploads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = OpeningRate(lambda: CHARACTERS_PER_S, "characters of new key terms")
        self._known: OrderedDict[Hashable, None] = OrderedDict()  # as clients wrote them, and as phrases of a bias
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keyterms")

    def check(self, owner: str, terms: tuple[str, ...]) -> None:
        """Refuse new terms, before they are parsed, while the owner's share is used up. Raises: TooManyOpenings."""
        if sum(map(len, terms)) > FEW_CHARACTERS and terms not in self._known:
            self._rate.refuse_if_exceeded(owner, self._clock())

    async def build(self, owner: str, terms: tuple[str, ...], bias: Bias, decoder: Decoder) -> None:
        """Build terms that were checked, for this decoder and the others of its model; charge new ones."""
        if _characters(bias) <= FEW_CHARACTERS:
            return
        if bias.phrases not in self._known:
            self._rate.take(owner, self._clock(), _characters(bias))
            if isinstance(decoder, ChecksTerms):
                await asyncio.get_running_loop().run_in_executor(self._thread, decoder.unspeakable, bias)
        for key in (terms, bias.phrases):
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def takes_long(self, biases: Sequence[Bias]) -> bool:
        """Whether one of them would take long to build: many terms, and not built lately."""
        return any(_characters(bias) > FEW_CHARACTERS and bias.phrases not in self._known for bias in biases)

    def close(self) -> None:
        """Stop the thread after its current work."""
        self._thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class OwnersTerms:
    """Building of the key terms that messages of one key or address ask for."""

    building: TermBuilding
    owner: str

    def refusal(self, terms: tuple[str, ...]) -> str | None:
        """Why these terms, as the client wrote them, must wait, None if they need not: the owner's share is used up."""
        try:
            self.building.check(self.owner, terms)
        except TooManyOpenings as error:
            return str(error)
        return None

    async def build(self, terms: tuple[str, ...], biases: Sequence[Bias], decoder: Decoder) -> str | None:
        """Build these terms, as each of these biases; return why they must wait."""
        try:
            for bias in biases:
                await self.building.build(self.owner, terms, bias, decoder)
        except TooManyOpenings as error:
            return str(error)
        return None


def _characters(bias: Bias) -> int:
    return sum(len(phrase) for phrase, _ in bias.phrases)
