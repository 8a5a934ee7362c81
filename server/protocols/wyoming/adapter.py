"""Adapter of one utterance of the Wyoming protocol: raw audio in any of its forms, one transcript at its end.

Words that can no longer change are sent meanwhile, as chunks whose texts, one after the other, are the transcript. The
utterance ends with the client's `audio-stop` alone. An end for another reason gives no transcript: a part of a command
may be another command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from model.ctc.words import Word, joined
from server.audio.pcm import downmix
from server.audio.raw import PlainCodec, PlainReader
from server.errors import CloseReason
from server.protocols.wyoming.events import CODECS, AudioFormat, encode_event
from server.recognition.events import Closed, Event, Final, Partial, StepTiming
from server.streaming.adapter import Action, Actions, Bias, Finish, PlainInput, PushAudio, SendFrame, Skip
from server.streaming.outbox import FrameKind

STOP = "audio-stop"
"""Text message that ends the audio. Any other text is an `AudioFormat` as JSON: the form of the audio that follows."""


class WyomingAdapter:
    """Adapter of one utterance."""

    def __init__(
        self, model_rate: int, *, language: str | None = None, terms: Sequence[str] = (), settled_words: bool = True
    ) -> None:
        """`language`: of the transcript; `terms`: key terms, as hints; `settled_words`: send words before their final.

        `settled_words` needs a session with `tell_stable`.
        """
        self._model_rate = model_rate
        self._language = language
        self._terms = tuple(terms)
        self._settled_words = settled_words
        self._input: PlainInput | None = None
        self._words: list[Word] = []  # of finals
        self._sent = ""  # of the transcript, in chunks

    def opened(self) -> Actions:
        """Announce chunks."""
        return (SendFrame(encode_event("transcript-start", _in_language(self._language))),)

    def text(self, text: str) -> Actions:
        """Handle the form of the audio that follows, or the end of the audio."""
        tail = () if self._input is None else self._input.tail()
        if text == STOP:
            return (*tail, Finish())
        terms, self._terms = self._terms, ()
        self._input = MixedInput(msgspec.json.decode(text, type=AudioFormat), self._model_rate)
        return (*tail, *((Bias(terms, hints=True),) if terms else ()))

    def binary(self, chunk: bytes) -> Actions:
        """Recognize audio, split anywhere."""
        assert self._input is not None, "its form comes first"
        return (self._input.read(chunk),)

    def event(self, event: Event, timing: StepTiming | None) -> Actions:  # noqa: ARG002 - an adapter's
        """Send words once they can no longer change, and the transcript at the end that the client asked for."""
        match event:
            case Partial(words=words, stable_words=stable) if self._settled_words:
                return self._chunk(words[:stable])
            case Final(words=words):
                chunk = tuple(self._chunk(words))
                self._words += words
                return chunk
            case Closed(reason=CloseReason.CLOSE_STREAM):
                return (SendFrame(transcript(joined(_texts(self._words)), self._language), FrameKind.FINAL, True),)
            case _:
                return ()

    def bias_refused(self, why: str) -> Actions:
        """Go on without the key terms: they are hints."""
        return (Skip(f"key terms: {why}"),)

    def _chunk(self, words: Sequence[Word]) -> Iterator[Action]:
        """Send what these words of the open segment add to the chunks."""
        text = joined(_texts([*self._words, *words]))
        if len(text) > len(self._sent) and text.startswith(self._sent):
            added = text[len(self._sent) :]
            self._sent = text
            yield SendFrame(encode_event("transcript-chunk", {"text": added}), FrameKind.FINAL)


class MixedInput(PlainInput):
    """Decoder of interleaved integer samples to mono at the model's rate."""

    def __init__(self, form: AudioFormat, model_rate: int) -> None:
        super().__init__(PlainCodec.S16, form.rate, model_rate)
        self._reader = PlainReader(CODECS[form.width], form.rate, form.channels)

    def read(self, chunk: bytes) -> PushAudio:
        """Decode a chunk of any length, and mix its channels."""
        return self._push(downmix(self._reader.read(chunk))[:, None], len(chunk))


def transcript(text: str, language: str | None) -> bytes:
    """Return the last events of an utterance: the transcript, and the end of its chunks."""
    return encode_event("transcript", {"text": text} | _in_language(language)) + encode_event("transcript-stop")


def _in_language(language: str | None) -> dict[str, str]:
    return {} if language is None else {"language": language}


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words]
