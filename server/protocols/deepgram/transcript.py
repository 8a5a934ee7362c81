"""Words of a channel as Deepgram's JSON, of live results and of uploaded recordings. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from model.ctc.words import Word, joined
from server.models.loading import ModelCard
from server.protocols.deepgram.messages import Alternative, Alternatives, Warned, WordOut, warned
from server.text.formatting import FormattedWord, Sentences, Style

_encode = msgspec.json.Encoder().encode


class Transcript:
    """Encodes the words of one channel as the `channel` object of live results. Segments come in order.

    The object is joined by hand from the words' JSON, so that only the words that changed since the frame before are
    encoded again: a segment of N words costs N encodings over its life instead of N a partial. It is byte for byte
    `Alternatives` of `alternative`, which uploads use (tests/server/protocols/test_deepgram_transcript.py).
    """

    def __init__(self, style: Style, *, punctuated: bool) -> None:
        self._sentences = Sentences(style) if style.punctuate or style.numerals else None
        self._punctuated = punctuated
        self._words: Sequence[Word] | None = None  # of the last partial: the same tuple is the same text
        self._shown: list[tuple[Word, str]] = []  # words and their displayed text in the frame before
        self._parts: list[bytes] = []  # the same as JSON
        self._last = (msgspec.Raw(), 0)  # answer of the last partial

    @property
    def opening(self) -> tuple[str, ...]:
        """The words with which the next segment's sentence has begun."""
        return () if self._sentences is None else self._sentences.opening

    def restore(self, opening: tuple[str, ...]) -> None:
        """Go on behind a sentence's beginning."""
        if self._sentences is not None:
            self._sentences.opening = opening

    def partial(self, words: Sequence[Word]) -> tuple[msgspec.Raw, int]:
        """Return an unfinished segment as JSON, and how many words it shows."""
        if words is not self._words:
            formatted = None if self._sentences is None else self._sentences.partial(words)
            self._last = self._encoded(words, formatted)
            self._words = words
        return self._last

    def final(self, words: Sequence[Word], *, ends: bool) -> tuple[msgspec.Raw, int]:
        """Return a segment as JSON, and how many words it shows; `ends` as in `Sentences`."""
        self._words = None
        return self._encoded(words, None if self._sentences is None else self._sentences.final(words, ends=ends))

    def _encoded(self, words: Sequence[Word], formatted: Sequence[FormattedWord] | None) -> tuple[msgspec.Raw, int]:
        shown = [(w, w.text) for w in words] if formatted is None else [(f.word, f.text) for f in formatted]
        kept = 0
        for before, now in zip(self._shown, shown, strict=False):
            if before[0] is not now[0] or before[1] != now[1]:
                break
            kept += 1
        self._parts[kept:] = [_encode(word_out(word, text, self._punctuated)) for word, text in shown[kept:]]
        self._shown = shown
        confidence = sum([word.confidence for word, _ in shown]) / len(shown) if shown else 0.0
        transcript, mean = _encode(joined([text for _, text in shown])), _encode(round(confidence, 4))
        words_json = b",".join(self._parts)
        json = b'{"alternatives":[{"transcript":%b,"confidence":%b,"words":[%b]}]}' % (transcript, mean, words_json)
        return msgspec.Raw(json), len(shown)


def alternative(words: Sequence[FormattedWord], punctuated: bool) -> Alternative:
    """Build the transcript of the words; its confidence is their mean."""
    out = [word_out(formatted.word, formatted.text, punctuated) for formatted in words]
    confidence = sum(formatted.word.confidence for formatted in words) / len(words) if words else 0.0
    return Alternative(joined(formatted.text for formatted in words), round(confidence, 4), out)


def word_out(word: Word, text: str, punctuated: bool) -> WordOut:
    """Build one word as it was recognised and, where the client formats, as it is shown."""
    start_s, end_s = round(word.start_s, 3), round(word.end_s, 3)
    return WordOut(word.text, start_s, end_s, round(word.confidence, 4), text if punctuated else UNSET)


class Summary(msgspec.Struct):
    """What was recognised with what."""

    transaction_key: str
    request_id: str
    sha256: str
    created: str
    duration: float
    channels: int
    models: list[str]
    model_info: dict[str, dict[str, str]]
    warnings: list[Warned] | UnsetType = UNSET


class Channels(msgspec.Struct):
    """One transcript a channel; utterances are not split off."""

    channels: list[Alternatives]
    utterances: list[str]


class Answer(msgspec.Struct):
    """The whole answer."""

    metadata: Summary
    results: Channels


def recording_answer(
    transcripts: Sequence[Sequence[FormattedWord]],
    *,
    request_id: str,
    sha256: str,
    created: str,
    duration_s: float,
    model: ModelCard,
    punctuated: bool,
    warnings: Sequence[str] = (),
) -> bytes:
    """Build the answer from each channel's words; `warnings` are `kind: sentence`."""
    summary = Summary(
        transaction_key="deprecated",
        request_id=request_id,
        sha256=sha256,
        created=created,
        duration=round(duration_s, 6),
        channels=len(transcripts),
        models=[model.uuid],
        model_info={model.uuid: model.info},
        warnings=warned("body", warnings),
    )
    channels = [Alternatives((alternative(words, punctuated),)) for words in transcripts]
    return msgspec.json.encode(Answer(summary, Channels(channels, [])))
