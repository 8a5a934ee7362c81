"""Paragraphs of a recording: sentences by their marks, together until the speaker changes or pauses. Pure.

Source of the form: Deepgram's page on paragraphs, and its OpenAPI description.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from model.ctc.words import joined
from server.protocols.deepgram.messages import Paragraph, Paragraphs, Sentence
from server.text.formatting import FormattedWord
from server.text.speaker_turns import Words, speaker_of, turns

ENDS = tuple(".?!。？！")  # marks at the end of a sentence
PAUSE_S = 1.5  # after a sentence, between two paragraphs
MOST_SENTENCES = 6


def paragraphs_of(words: Words) -> Paragraphs:
    """Return the paragraphs of one channel's words. The text names the speakers if they are distinguished."""
    groups = list(_grouped(list(_sentences(words))))
    return Paragraphs("".join(f"\n{_text(group)}\n" for group in groups).rstrip("\n"), [_paragraph(g) for g in groups])


def _sentences(words: Words) -> Iterator[Words]:
    begin = 0
    for at in range(1, len(words) + 1):
        if at == len(words) or words[at - 1].text.endswith(ENDS) or turns(words, at):
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


def _text(sentences: Sequence[Words]) -> str:
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
