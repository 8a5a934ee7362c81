"""A recogniser at the far end of a telephone line: what `tutti evaluate --codec` puts recordings through.

Recordings are brought to the line's rate, coded as a telephone codes them and decoded by the tables that live streams
use; what the model hears is what it would hear of a caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from server.audio.pcm import PCM
from server.audio.raw import alaw_table, mulaw_table
from server.settings import Settings
from server.tools.local import LocalTranscriber, open_local

LINE_RATE = 8_000
TABLES: dict[str, Callable[[], PCM]] = {"mulaw": mulaw_table, "alaw": alaw_table}


@asynccontextmanager
async def open_coded(settings: Settings, codec: str, **query: Any) -> AsyncIterator[CodedTranscriber]:
    """Like `open_local`, behind a line of this codec. Raises: ModelError; NotRecognised; KeyError for no such codec."""
    table = TABLES[codec]()
    async with open_local(settings, sample_rate=LINE_RATE, **query) as local:
        yield CodedTranscriber(local, table)


class CodedTranscriber:
    """Recordings in, messages out, by way of a line; a `Transcriber` of `tutti_asr_client` by structure."""

    sample_rate = LINE_RATE

    def __init__(self, local: LocalTranscriber, table: PCM) -> None:
        """Take the value of each code, (256,) int16."""
        self._local = local
        self._table = table

    def stream(self, pcm: AsyncIterable[bytes]) -> AsyncGenerator[Any, None]:
        """Recognise one recording of int16 mono PCM at the line's rate. Raises: NotRecognised."""
        return self._local.stream(self._line(pcm))

    async def _line(self, pcm: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for chunk in pcm:
            yield self._table[coded(np.frombuffer(chunk, "<i2"), self._table)].tobytes()


def coded(pcm: PCM, table: PCM) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The code whose value is nearest to each sample: (S,) int16 -> (S,) uint8. Source: ITU-T G.711."""
    order = np.argsort(table, kind="stable")
    values = table[order].astype(np.int32)
    limits = (values[1:] + values[:-1]) / 2
    return order[np.searchsorted(limits, pcm)].astype(np.uint8)
