"""Utterances of a recording in Deepgram's form: all channels in one list, in the order in which they were said. Pure.

Source: `ListenV1ResponseResultsUtterances` of deepgram-sdk 7.16.0. `overlap` is ours.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from server.protocols.deepgram.messages import SpokenWord, UtteranceOut
from server.protocols.deepgram.transcript import alternative
from server.text.formatting import FormattedWord

SPLIT_S = 0.8  # of silence between two utterances. Source: Deepgram's page on `utt_split`


def utterances(
    transcripts: Sequence[Sequence[FormattedWord]], split_s: float, *, punctuated: bool, request_id: str
) -> list[UtteranceOut]:
    """Split each channel's words at pauses of `split_s`. With several channels the speaker is the channel."""
    several = len(transcripts) > 1
    parts = [(channel, part) for channel, words in enumerate(transcripts) for part in _split(words, split_s)]
    parts.sort(key=lambda item: (item[1][0].word.start_s, item[0]))
    found = [
        _utterance(channel, part, punctuated=punctuated, speaker=channel if several else UNSET)
        for channel, part in parts
    ]
    sides = [[one for one in found if one.channel == channel] for channel in range(len(transcripts))]
    for number, one in enumerate(found):
        one.id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{request_id} {number}"))
        if several:
            one.overlap = any(_speaks(side, one) for side in sides if side is not sides[one.channel])
    return found


def _speaks(side: Sequence[UtteranceOut], during: UtteranceOut) -> bool:
    """Whether one of a channel's utterances, which follow one another, overlaps with one of another channel."""
    before = bisect_left(side, during.end, key=lambda one: one.start)
    return before > 0 and side[before - 1].end > during.start


def _split(words: Sequence[FormattedWord], split_s: float) -> Iterator[Sequence[FormattedWord]]:
    begin = 0
    for at in range(1, len(words) + 1):
        if at == len(words) or words[at].word.start_s - words[at - 1].word.end_s >= split_s:
            yield words[begin:at]
            begin = at


def _utterance(
    channel: int, words: Sequence[FormattedWord], *, punctuated: bool, speaker: int | UnsetType
) -> UtteranceOut:
    whole = alternative(words, punctuated)
    spoken = [SpokenWord(w.word, w.start, w.end, w.confidence, w.punctuated_word, speaker) for w in whole.words]
    start, end = spoken[0].start, spoken[-1].end
    return UtteranceOut(start, end, whole.confidence, channel, whole.transcript, spoken, "", speaker)
