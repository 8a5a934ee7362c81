"""Delay of Flux's early end of turn, `EagerEndOfTurn`, and of `EndOfTurn`, from the end of speech.

Each recording is followed by two seconds of its own quietest 200 ms. The end of speech is where silero's last silence
begins, as for `--ruler turns`. An early end that comes before that is one of a pause inside the turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.generator.settings import SAMPLE_RATE
from loadtest.rulers.playing import Played, pieces
from loadtest.rulers.recordings import PlayedRecordings, Spoken
from loadtest.rulers.report import Figure, figure
from loadtest.rulers.silences import Listener, with_quiet
from loadtest.rulers.turns import PATH, FluxTake
from tutti_asr_client.address import QueryValue

QUERY: dict[str, QueryValue] = {
    "model": "flux-general-en",
    "encoding": "linear16",
    "sample_rate": SAMPLE_RATE,
    "eager_eot_threshold": 0.5,  # Source: pipecat-ai 1.14.0, `enable_eager_end_of_turn`
}
BEFORE_S = 0.1  # before silero's end of speech, in which an end still belongs to it: a window is 32 ms
STARTS = "silero's end of speech"


class EarlyTake(FluxTake):
    """A recording with quiet after it, and the arrivals of its events after the end of speech."""

    def __init__(self, frames: tuple[bytes, ...], end_s: float, language: str) -> None:
        """`end_s`: the end of speech in the recording."""
        super().__init__(frames)
        self.language = language
        self.early_s: float | None = None
        self.ended_s: float | None = None
        self.resumed_s: float | None = None  # the first time that an early end was taken back
        self._end_s = end_s

    def event(self, name: str, at_s: float) -> None:
        """Note the first event of each kind after the end of speech."""
        after_s = at_s - self._end_s
        if after_s < -BEFORE_S or self.ended_s is not None:
            return
        if name == "EagerEndOfTurn" and self.early_s is None:
            self.early_s = after_s
        elif name == "TurnResumed" and self.early_s is not None and self.resumed_s is None:
            self.resumed_s = after_s
        elif name == "EndOfTurn":
            self.ended_s = after_s


class EarlyEnd(PlayedRecordings[tuple[tuple[bytes, ...], float, str]]):
    """The ruler: prepares each recording once."""

    query = QUERY
    path = PATH

    def __init__(self, spoken: Sequence[Spoken]) -> None:
        """Find the end of speech of all recordings. Raises: BadManifest if there is none."""
        listener = Listener()
        quiet = [(with_quiet(recording.samples), recording.language) for recording in spoken]
        measured = [(pcm, listener.silences(pcm), language) for pcm, language in quiet]
        super().__init__(
            [
                (pieces(pcm.tobytes()), silences[-1][0], language) if silences else None
                for pcm, silences, language in measured
            ]
        )

    def take(self, recording: tuple[tuple[bytes, ...], float, str]) -> EarlyTake:
        """Return a take of a recording."""
        return EarlyTake(*recording)

    def figures(self, played: Played) -> tuple[Figure, ...]:
        """Return the figures of a level."""
        takes = [take for take in played.takes if isinstance(take, EarlyTake)]
        kinds = (
            ("early-end", "first EagerEndOfTurn", [take.early_s for take in takes]),
            ("taken-back", "TurnResumed after it", [take.resumed_s for take in takes]),
            ("end", "EndOfTurn", [take.ended_s for take in takes]),
        )
        return tuple(figure(name, STARTS, ends, [s for s in after_s if s is not None]) for name, ends, after_s in kinds)
