"""Parts of a text by one speaker each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from server.text.formatting import FormattedWord

Words = Sequence[FormattedWord]
SPLIT_S = 0.8  # of silence between two parts. Source: Deepgram's page on `utt_split`


def turns(words: Words, at: int) -> bool:
    """Whether another speaker says the word at this place than the one before it."""
    before, after = words[at - 1].word.speaker, words[at].word.speaker
    return before is not None and after is not None and before.number != after.number


def parts(words: Words, split_s: float = SPLIT_S) -> Iterator[Words]:
    """Divide words at pauses of `split_s`, and where the speaker changes."""
    begin = 0
    for at in range(1, len(words) + 1):
        if at == len(words) or words[at].word.start_s - words[at - 1].word.end_s >= split_s or turns(words, at):
            yield words[begin:at]
            begin = at


def speaker_of(words: Words) -> int | None:
    """Return the number of the speaker of a part; None if speakers are not distinguished."""
    speaker = words[0].word.speaker
    return None if speaker is None else speaker.number
