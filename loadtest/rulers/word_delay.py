"""Delay of words: from the end of each word in the audio until it is first shown, stable, and final at the client.

Ends of words are by forced alignment, so the recognizer's lookahead and its step are part of each delay. Only words
that were recognized are measured. LiveKit's figures are under LiveKit's names, from the end of speech by silero: its
`transcription_delay`, and the `end_of_utterance_delay` of an agent session whose server ends turns
(`turn_detection="stt"`), which decides no earlier than `min_delay` after the end of speech.
Source: livekit-agents 1.8.9, `livekit.agents.voice.audio_recognition` and `livekit.agents.voice.turn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from loadtest.generator.settings import SAMPLE_RATE
from loadtest.rulers.alignment import Aligner, SpokenWord
from loadtest.rulers.playing import PIECE_S, Played, pieces
from loadtest.rulers.recordings import PlayedRecordings, Spoken
from loadtest.rulers.report import Figure, figure
from loadtest.rulers.voice import Voice
from model.evaluation.scoring import aligned
from tutti_asr_client.address import QueryValue
from tutti_asr_client.messages import Results

QUERY: dict[str, QueryValue] = {
    "encoding": "linear16",
    "sample_rate": SAMPLE_RATE,
    "interim_results": True,
    "endpointing": 25,  # LiveKit's default
    "stable_words": True,
}
TAIL_S = 3.0  # of silence after a recording, in which its last segment ends
MIN_DELAY_S = 0.5  # LiveKit's default of `endpointing.min_delay`
WORD_END, SPEECH_END = "the end of the word (forced alignment)", "the end of speech (silero)"
SHOWN = ("first_shown", "stable", "final")
ENDS = ("the message that shows it as it stays", "the message that marks it stable", "the final that has it")

_decoder: msgspec.json.Decoder[Results] = msgspec.json.Decoder(Results)
_TYPE = b'"type":"Results"'


@dataclass(slots=True)
class ShownWord:
    """A word of the transcript and the clock times of its messages."""

    text: str
    first_s: float
    stable_s: float | None = None
    final_s: float | None = None


class WordTake:
    """A recording whose results are kept with their times of arrival."""

    def __init__(
        self, frames: tuple[bytes, ...], words: Sequence[SpokenWord], speech_end_s: float | None, language: str = ""
    ) -> None:
        self.frames, self.language = frames, language
        self.marks = frozenset([len(frames) + math.ceil(TAIL_S / PIECE_S)])
        self.words, self.speech_end_s = words, speech_end_s
        self.start_s = 0.0
        self.received: list[tuple[bytes, float]] = []
        self.over = False

    def started(self, start_s: float) -> None:
        """Delays are measured from places in the audio after this."""
        self.start_s = start_s

    def after(self, piece: int, due_s: float) -> bytes | None:  # noqa: ARG002 - a take's
        """End after the silence."""
        self.over = True
        return None

    def message(self, frame: bytes, now: float) -> None:
        """Keep a result; it is read after the level, which saves time during it."""
        if _TYPE in frame:
            self.received.append((frame, now))

    def results(self) -> list[tuple[Results, float]]:
        """Return the results and their arrival, seconds of the recording."""
        return [(_decoder.decode(frame), now - self.start_s) for frame, now in self.received]


def shown(results: Sequence[tuple[Results, float]]) -> list[ShownWord]:
    """Return the words of all finals with the times at which each was shown, stable and final."""
    settled: list[ShownWord] = []
    open_words: list[ShownWord] = []
    for result, now_s in results:
        texts = [word.word.lower() for word in result.words]
        del open_words[len(texts) :]
        for number, text in enumerate(texts):
            if number == len(open_words):
                open_words.append(ShownWord(text, now_s))
            elif open_words[number].text != text:
                open_words[number] = ShownWord(text, now_s)
        stable = result.tutti.stable_words if result.tutti is not None else None
        for word in open_words if result.is_final else open_words[: stable or 0]:
            word.stable_s = now_s if word.stable_s is None else word.stable_s
        if result.is_final:
            for word in open_words:
                word.final_s = now_s
            settled += open_words
            open_words = []
    return settled


def delays(words: Sequence[SpokenWord], displayed: Sequence[ShownWord]) -> list[tuple[float, float, float]]:
    """Return the delays until first shown, stable and final of each word that was recognized, in order."""
    ends, times = iter(words), iter(displayed)
    measured = []
    for expected, recognized in aligned([word.text for word in words], [word.text for word in displayed]):
        spoken = next(ends) if expected is not None else None
        word = next(times) if recognized is not None else None
        if spoken is None or word is None or expected != recognized:
            continue
        assert word.stable_s is not None
        assert word.final_s is not None
        measured.append((word.first_s - spoken.end_s, word.stable_s - spoken.end_s, word.final_s - spoken.end_s))
    return measured


def turn_delays(results: Sequence[tuple[Results, float]], speech_end_s: float) -> tuple[float | None, float | None]:
    """Return LiveKit's `transcription_delay` and `end_of_utterance_delay`; None without a final, or an endpoint."""
    finals_s = [now_s for result, now_s in results if result.is_final and result.words]
    if not finals_s:
        return None, None
    ended_s = [now_s for result, now_s in results if result.speech_final and now_s >= finals_s[-1]]
    transcription_s = max(finals_s[-1] - speech_end_s, 0.0)
    return transcription_s, max(ended_s[0] - speech_end_s, MIN_DELAY_S) if ended_s else None


class WordDelay(PlayedRecordings[tuple[tuple[bytes, ...], Sequence[SpokenWord], float | None, str]]):
    """The ruler: prepares each recording once."""

    query = QUERY
    useless = "no recording has an English text that can be aligned; use others"

    def __init__(self, spoken: Sequence[Spoken]) -> None:
        """Align all recordings. Raises: BadManifest if none has a text that can be aligned; PeerMissing."""
        aligner, voice = Aligner(), Voice()
        silence = np.zeros(round(TAIL_S * SAMPLE_RATE), np.int16)
        recognizable = [(recording, aligner.align(recording.samples, recording.text)) for recording in spoken]
        super().__init__(
            [
                None
                if words is None
                else (
                    pieces(recording.samples.tobytes()),
                    words,
                    voice.end_s(np.concatenate([recording.samples, silence])),
                    recording.language,
                )
                for recording, words in recognizable
            ]
        )
        self._words = self._recognized = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the report."""
        measured = f"{self._recognized} of {self._words} words were recognized and measured"
        if not self.left_out:
            return (measured,)
        return measured, f"{self.left_out} recordings were left out: their texts could not be aligned"

    def take(self, recording: tuple[tuple[bytes, ...], Sequence[SpokenWord], float | None, str]) -> WordTake:
        """Return a take of a recording."""
        return WordTake(*recording)

    def figures(self, played: Played) -> tuple[Figure, ...]:
        """Return the figures of a level."""
        words, transcription, utterance = [], [], []
        for take in played.takes:
            assert isinstance(take, WordTake)
            results = take.results()
            measured = delays(take.words, shown(results))
            self._words, self._recognized = self._words + len(take.words), self._recognized + len(measured)
            words += measured
            if take.speech_end_s is not None:
                transcribed, ended = turn_delays(results, take.speech_end_s)
                transcription += [] if transcribed is None else [transcribed]
                utterance += [] if ended is None else [ended]
        by_kind = zip(SHOWN, ENDS, strict=True)
        return (
            *(
                figure(f"word {name}", WORD_END, end, [word[i] for word in words])
                for i, (name, end) in enumerate(by_kind)
            ),
            figure("transcription_delay", SPEECH_END, "the last final with text", transcription),
            figure("end_of_utterance_delay", SPEECH_END, "the endpoint, at least 0.5 s", utterance),
        )
