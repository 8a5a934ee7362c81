"""Key terms of new streams and uploads: built on one thread, each key or address within a rate.

Building 2,500 characters takes 15 ms and more. On the event loop they would delay the results of all streams.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from model.ctc.bias import Bias
from model.ctc.interface import ChecksTerms, Decoder
from server.coordination.opening_rate import OpeningRate

CHARACTERS_PER_S = 8_000.0  # of each key or address: a twentieth of a core
FEW_CHARACTERS = 100  # built on the event loop without charge: less than a millisecond
MAX_KNOWN = 128
"""Sets that were built lately, which cost nothing: half of those that the decoders keep."""


class TermBuilding:
    """Builds the key terms of one process's new streams and uploads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = OpeningRate(lambda: CHARACTERS_PER_S, "characters of new key terms")
        self._known: OrderedDict[tuple[str, ...], None] = OrderedDict()  # as the clients wrote them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keyterms")

    def check(self, owner: str, terms: tuple[str, ...]) -> None:
        """Refuse new terms, before they are parsed, while the owner's share is used up. Raises: TooManyOpenings."""
        if terms and terms not in self._known:
            self._rate.refuse_if_exceeded(owner, self._clock())

    async def build(self, owner: str, terms: tuple[str, ...], bias: Bias, decoder: Decoder) -> None:
        """Build terms that were checked, for this decoder and the others of its model; charge new ones."""
        characters = sum(len(phrase) for phrase, _ in bias.phrases)
        if characters <= FEW_CHARACTERS:
            return
        if terms not in self._known:
            self._rate.take(owner, self._clock(), characters)
            if isinstance(decoder, ChecksTerms):
                await asyncio.get_running_loop().run_in_executor(self._thread, decoder.unspeakable, bias)
        self._known[terms] = None
        self._known.move_to_end(terms)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def close(self) -> None:
        """Stop the thread after its current work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
