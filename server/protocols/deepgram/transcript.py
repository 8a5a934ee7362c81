"""JSON of words in Deepgram's format: live results, uploads, and a recording's utterances and paragraphs. Pure."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import UNSET, UnsetType

from model.ctc.words import Word, joined, languages_of
from server.models.loading import ModelCard
from server.protocols.deepgram.messages import (
    Alternative,
    Alternatives,
    Paragraph,
    Paragraphs,
    Sentence,
    UtteranceOut,
    Warned,
    WordOut,
    warned,
)
from server.receipts.receipt import ShownWord
from server.text.formatting import FormattedWord, Sentences, Style
from server.text.speaker_turns import Words, speaker_of, turns
from server.text.speaker_turns import parts as parts_of

_encode = msgspec.json.Encoder().encode


class Transcript:
    """Encoder of one channel's words as the `channel` object of live results. Segments must come in order.

    The object is assembled from the JSON of single words, so that only words that changed since the previous frame are
    encoded again: N encodings for a segment of N words instead of N for each partial. The result is byte for byte the
    `Alternatives` that uploads use (tests/server/protocols/deepgram/test_deepgram_transcript.py).
    """

    def __init__(self, style: Style, *, punctuated: bool) -> None:
        self._sentences = Sentences(style) if style.punctuate or style.numerals else None
        self._style, self._punctuated = style, punctuated
        self._words: Sequence[Word] | None = None  # of the last partial; the same tuple means the same text
        self._shown: tuple[Word, ...] = ()  # words of the previous frame
        self._texts: list[str] = []  # the same as displayed
        self._parts: list[bytes] = []  # the same as JSON
        self._last = (msgspec.Raw(), 0)  # result of the last `partial`

    @property
    def words(self) -> list[ShownWord]:
        """The words of the last final or partial, as encoded."""
        return [
            (round(w.start_s, 3), round(w.end_s, 3), round(w.confidence, 4), w.text, t if self._punctuated else w.text)
            for w, t in zip(self._shown, self._texts, strict=True)
        ]

    @property
    def opening(self) -> tuple[str, ...]:
        """The words of the unfinished sentence that the next segment continues."""
        return () if self._sentences is None else self._sentences.opening

    def restore(self, opening: tuple[str, ...]) -> None:
        """Continue an unfinished sentence."""
        if self._sentences is not None:
            self._sentences.opening = opening

    def partial(self, words: Sequence[Word]) -> tuple[msgspec.Raw, int]:
        """Return an unfinished segment as JSON, and its number of displayed words."""
        if words is not self._words:
            formatted = None if self._sentences is None else self._sentences.partial(words)
            self._last = self._encoded(words, formatted)
            self._words = words
        return self._last

    def stable(self, words: Sequence[Word], count: int) -> int:
        """Return how many displayed words of a partial cannot change, where this many recognized ones cannot."""
        return count if self._sentences is None else self._sentences.stable(words, count)

    def final(self, words: Sequence[Word], *, ends: bool) -> tuple[msgspec.Raw, int]:
        """Return a segment as JSON, and its number of displayed words; `ends` as in `Sentences`."""
        self._words = None
        return self._encoded(words, None if self._sentences is None else self._sentences.final(words, ends=ends))

    def correction(self, words: Sequence[Word], before: Sequence[str]) -> tuple[msgspec.Raw, int]:
        """Return words of earlier segments, decoded again, as JSON, and their number; `before` as in `restore`."""
        if self._sentences is None:
            return self._encoded(words, None)
        sentences = Sentences(self._style)
        sentences.opening = tuple(before)
        return self._encoded(words, sentences.final(words, ends=True))

    def _encoded(self, words: Sequence[Word], formatted: Sequence[FormattedWord] | None) -> tuple[msgspec.Raw, int]:
        displayed = tuple(words if formatted is None else [one.word for one in formatted])
        texts = [one.text for one in (displayed if formatted is None else formatted)]
        same = min(len(displayed), len(self._shown))
        while displayed[:same] != self._shown[:same] or texts[:same] != self._texts[:same]:
            same -= 1  # usually only the last word has changed
        changed = zip(displayed[same:], texts[same:], strict=True)
        self._parts[same:] = [_encode(word_out(word, text, self._punctuated)) for word, text in changed]
        self._shown, self._texts = displayed, texts
        confidence = sum([word.confidence for word in displayed]) / len(displayed) if displayed else 0.0
        transcript, mean = _encode(joined(texts)), _encode(round(confidence, 4))
        languages = languages_of(displayed)
        spoken = b',"languages":%b' % _encode(languages) if languages else b""
        last = b',"detected_language":%b' % _encode(detected(displayed)) if languages else b""
        parts = (transcript, mean, b",".join(self._parts), spoken, last)
        json = b'{"alternatives":[{"transcript":%b,"confidence":%b,"words":[%b]%b}]%b}' % parts
        return msgspec.Raw(json), len(displayed)


def alternative(words: Sequence[FormattedWord], punctuated: bool) -> Alternative:
    """Build a transcript of the words of a recording; its confidence is the mean of theirs."""
    out = [word_out(formatted.word, formatted.text, punctuated, confident=True) for formatted in words]
    confidence = sum(formatted.word.confidence for formatted in words) / len(words) if words else 0.0
    languages = languages_of(formatted.word for formatted in words) or UNSET
    return Alternative(joined(formatted.text for formatted in words), round(confidence, 4), out, languages)


def detected(words: Sequence[Word]) -> str | UnsetType:
    """Return the language of the last word that has one."""
    return next((word.language for word in reversed(words) if word.language), UNSET)


def word_out(word: Word, text: str, punctuated: bool, *, confident: bool = False) -> WordOut:
    """Build one word, as recognized and, with formatting, as displayed (`text`).

    `confident`: with the confidence of its speaker, if it has one.
    """
    start_s, end_s = round(word.start_s, 3), round(word.end_s, 3)
    written, language = text if punctuated else UNSET, word.language or UNSET
    out = WordOut(word.text, start_s, end_s, round(word.confidence, 4), written, language)
    if (speaker := word.speaker) is not None:
        out.speaker = speaker.number
        out.speaker_confidence = speaker.confidence if confident else UNSET
        out.other_voice = speaker.other or UNSET
    return out


class Summary(msgspec.Struct):
    """Metadata of an upload's answer."""

    transaction_key: str
    request_id: str
    sha256: str
    created: str
    duration: float
    channels: int
    models: list[str]
    model_info: dict[str, dict[str, str]]
    warnings: list[Warned] | UnsetType = UNSET
    extra: Mapping[str, str] | UnsetType = UNSET  # as given
    other_voice_words: int | UnsetType = UNSET  # ours: by other voices than the one that is listened to


class Channels(msgspec.Struct):
    """One transcript per channel, and `utterances` of all channels if requested."""

    channels: list[Alternatives]
    utterances: Sequence[UtteranceOut]


class Answer(msgspec.Struct):
    """The answer to an upload."""

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
    utterances: Sequence[UtteranceOut] = (),
    with_paragraphs: bool = False,
    extra: Mapping[str, str] = MappingProxyType({}),
    other_words: int | None = None,
) -> bytes:
    """Build the answer to an upload from each channel's words; `warnings` have the form `kind: sentence`.

    `other_words`: by other voices than the one that is listened to; None if all are.
    """
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
        extra=extra or UNSET,
        other_voice_words=UNSET if other_words is None else other_words,
    )
    channels = [
        Alternatives((alternative(words, punctuated),), detected([formatted.word for formatted in words]))
        for words in transcripts
    ]
    for channel, words in zip(channels, transcripts, strict=True):
        channel.alternatives[0].paragraphs = paragraphs_of(words) if with_paragraphs else UNSET
    return msgspec.json.encode(Answer(summary, Channels(channels, utterances)))


def utterances(
    transcripts: Sequence[Sequence[FormattedWord]], split_s: float, *, punctuated: bool, request_id: str
) -> list[UtteranceOut]:
    """Split each channel's words at pauses of `split_s`, and where the speaker changes.

    Of several channels whose speakers are not distinguished the speaker is the channel.
    """
    several = len(transcripts) > 1
    parts = [(channel, part) for channel, words in enumerate(transcripts) for part in parts_of(words, split_s)]
    parts.sort(key=lambda item: (item[1][0].word.start_s, item[0]))
    spoken = [
        _utterance(channel, part, punctuated=punctuated, speaker=channel if several else UNSET)
        for channel, part in parts
    ]
    sides = [[one for one in spoken if one.channel == channel] for channel in range(len(transcripts))]
    for number, one in enumerate(spoken):
        one.id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{request_id} {number}"))
        if several:
            one.overlap = any(_speaks(side, one) for side in sides if side is not sides[one.channel])
    return spoken


def _speaks(side: Sequence[UtteranceOut], during: UtteranceOut) -> bool:
    """Whether one of a channel's utterances, which follow one another, overlaps with one of another channel."""
    before = bisect_left(side, during.end, key=lambda one: one.start)
    return before > 0 and side[before - 1].end > during.start


def _utterance(
    channel: int, words: Sequence[FormattedWord], *, punctuated: bool, speaker: int | UnsetType
) -> UtteranceOut:
    whole = alternative(words, punctuated)
    spoken = whole.words
    if spoken[0].speaker is UNSET:
        for word in spoken:
            word.speaker = speaker
    start, end = spoken[0].start, spoken[-1].end
    return UtteranceOut(start, end, whole.confidence, channel, whole.transcript, spoken, "", spoken[0].speaker)


SENTENCE_ENDS = tuple(".?!。？！")  # marks at the end of a sentence
PAUSE_S = 1.5  # after a sentence, between two paragraphs
MOST_SENTENCES = 6


def paragraphs_of(words: Words) -> Paragraphs:
    """Return the paragraphs of one channel's words: sentences, together until the speaker changes or pauses.

    The text names the speakers if they are distinguished. Source of the form: Deepgram's page on paragraphs, and its
    OpenAPI description.
    """
    groups = list(_grouped(list(_sentences(words))))
    return Paragraphs(
        "".join(f"\n{_labeled_text(group)}\n" for group in groups).rstrip("\n"), [_paragraph(g) for g in groups]
    )


def _sentences(words: Words) -> Iterator[Words]:
    begin = 0
    for at in range(1, len(words) + 1):
        if at == len(words) or words[at - 1].text.endswith(SENTENCE_ENDS) or turns(words, at):
            yield words[begin:at]
            begin = at


def _grouped(sentences: Sequence[Words]) -> Iterator[Sequence[Words]]:
    begin = 0
    for at in range(1, len(sentences) + 1):
        if at == len(sentences) or at - begin == MOST_SENTENCES or _separate(sentences[at - 1], sentences[at]):
            yield sentences[begin:at]
            begin = at


def _separate(before: Words, after: Words) -> bool:
    return turns([before[-1], after[0]], 1) or after[0].word.start_s - before[-1].word.end_s >= PAUSE_S


def _labeled_text(sentences: Sequence[Words]) -> str:
    speaker = speaker_of(sentences[0])
    label = "" if speaker is None else f"Speaker {speaker}: "
    return label + joined(word.text for sentence in sentences for word in sentence)


def _paragraph(group: Sequence[Words]) -> Paragraph:
    sentences = [Sentence(joined(word.text for word in words), *_times(words[0], words[-1])) for words in group]
    speaker = speaker_of(group[0])
    return Paragraph(
        sentences, sum(map(len, group)), sentences[0].start, sentences[-1].end, UNSET if speaker is None else speaker
    )


def _times(first: FormattedWord, last: FormattedWord) -> tuple[float, float]:
    return round(first.word.start_s, 3), round(last.word.end_s, 3)
