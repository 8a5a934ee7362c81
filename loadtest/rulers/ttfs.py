"""Time to the final segment (TTFS), as pipecat's stt-benchmark measures it.

Pieces of 20 ms in real time, then silence. When silero reports that speech stopped, after 0.2 s of silence, the client
sends `Finalize`; the time runs from 0.2 s before that to the arrival of the final with `from_finalize`. A recording
with several stops is measured at the last one, as there. Source: pipecat-ai/stt-benchmark; pipecat-ai 1.14.0,
`pipecat.services.stt_service` and `pipecat.services.deepgram.stt`, whose query this is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadtest.generator.answers import LatencySplit
from loadtest.generator.frames import TEXT, masked
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.rulers.playing import Played, pieces
from loadtest.rulers.recordings import PlayedRecordings, Spoken
from loadtest.rulers.report import Figure, figure
from loadtest.rulers.voice import STOP_S, Voice
from tutti_asr_client.address import QueryValue

QUERY: dict[str, QueryValue] = {
    "encoding": "linear16",
    "sample_rate": SAMPLE_RATE,
    "channels": 1,
    "interim_results": True,
    "punctuate": True,
}
TAIL_S = 2.0  # of silence, in which the last stop is found
ANSWER = b'"from_finalize":true'
FINALIZE = masked(TEXT, b'{"type":"Finalize"}')
STARTS, ENDS = "silero's stop less 0.2 s", "the last final with from_finalize"
REST = "rest"
PARTS = {  # of the time after the stop
    "queue": ("the arrival of `Finalize`", "the start of the batch with the flush's last step"),
    "step": ("the start of that batch", "its end"),
    "handover": ("the end of that batch", "the start of decoding"),
    "decode": ("the start of decoding", "the end of decoding"),
    REST: ("silero's stop", "all else: a late send, both ways through the sockets, formatting"),
}


class _Report(msgspec.Struct, frozen=True):
    latency: LatencySplit | None = None


class _Message(msgspec.Struct, frozen=True):
    type: str
    is_final: bool = False
    from_finalize: bool = False
    tutti: _Report | None = None


_decoder = msgspec.json.Decoder(_Message)


class FinalTake:
    """A recording with a `Finalize` at each stop; `ttfs_s` is known at its end."""

    def __init__(self, frames: tuple[bytes, ...], stops: Sequence[int], language: str = "") -> None:
        """`stops` are pieces, ascending."""
        self.frames, self.language = frames, language
        self.ttfs_s: float | None = None
        self._split: LatencySplit | None = None  # of the last final, if it was requested
        self.marks = frozenset(stops)
        self._last = stops[-1]
        self._unanswered = 0
        self._speech_end_s: float | None = None

    def started(self, start_s: float) -> None:
        """Nothing is measured from the start."""

    def after(self, piece: int, due_s: float) -> bytes:
        """Return a `Finalize` after a stop."""
        self._unanswered += 1
        if piece == self._last:
            self._speech_end_s = due_s - STOP_S
        return FINALIZE

    def message(self, frame: bytes, now: float) -> None:
        """Each `Finalize` is answered by one final with `from_finalize`, in order."""
        if ANSWER not in frame:
            return  # nearly all messages are interims, whose JSON is not read
        message = _decoder.decode(frame)
        if not (message.is_final and message.from_finalize):
            return
        self._unanswered -= 1
        if self._speech_end_s is not None and not self._unanswered:
            self.ttfs_s = now - self._speech_end_s
            self._split = None if message.tutti is None else message.tutti.latency

    def parts_s(self) -> dict[str, float]:
        """Return the parts of the time after the stop by name; empty if they were not requested."""
        split = self._split
        if split is None or self.ttfs_s is None:
            return {}
        parts = {name: getattr(split, f"{name}_ms") / 1e3 for name in PARTS if name != REST}
        return parts | {REST: self.ttfs_s - STOP_S - sum(parts.values())}

    @property
    def over(self) -> bool:
        """Whether the last `Finalize` was answered."""
        return self.ttfs_s is not None


class Ttfs(PlayedRecordings[tuple[tuple[bytes, ...], tuple[int, ...], str]]):
    """The ruler: prepares each recording once."""

    def __init__(self, spoken: Sequence[Spoken], *, explain: bool = False) -> None:
        """Find the stops of all recordings; `explain`: request the parts of each latency.

        Raises: BadManifest if there are no stops.
        """
        self.query = QUERY | {"latency": True} if explain else QUERY
        voice, silence = Voice(), np.zeros(round(TAIL_S * SAMPLE_RATE), np.int16)
        measured = [(recording, voice.stops(np.concatenate([recording.samples, silence]))) for recording in spoken]
        super().__init__(
            [(pieces(one.samples.tobytes()), stops, one.language) if stops else None for one, stops in measured]
        )

    def take(self, recording: tuple[tuple[bytes, ...], tuple[int, ...], str]) -> FinalTake:
        """Return a take of a recording."""
        return FinalTake(*recording)

    def figures(self, played: Played) -> tuple[Figure, ...]:
        """Return the figure of a level, and those of its parts if they were requested."""
        takes = [take for take in played.takes if isinstance(take, FinalTake)]
        whole = figure("ttfs", STARTS, ENDS, [take.ttfs_s for take in takes if take.ttfs_s is not None])
        parts = [split_s for take in takes if (split_s := take.parts_s())]
        split = PARTS.items() if parts else ()
        return (whole, *(figure(name, *ends, [part[name] for part in parts]) for name, ends in split))
