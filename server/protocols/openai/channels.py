"""Names of channels in the answers of `/v1/audio/transcriptions`, where a recording's channels were separated. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from model.ctc.words import joined
from server.text.formatting import FormattedWord
from server.text.subtitles import Cue, cues, passages

Words = Sequence[FormattedWord]


def name_of(channel: int, channels: int) -> str:
    """Return the name of a channel, from 0; an empty text if there is only one."""
    return f"Channel {channel + 1}" if channels > 1 else ""


def label_of(name: str) -> str:
    """Return what stands before the words of a channel, as "Channel 1: "."""
    return f"{name}: " if name else ""


def named_passages(channels: Sequence[Words]) -> list[tuple[str, Words]]:
    """Return the passages between pauses with their channels' names, in the order of time."""
    named = [
        (name, part)
        for number, words in enumerate(channels)
        for name in (name_of(number, len(channels)),)
        for part in passages(words, label_of(name))
    ]
    return sorted(named, key=lambda passage: passage[1][0].word.start_s)


def text_of(channels: Sequence[Words]) -> str:
    """Return the text: of several channels a line for all words until another channel speaks, after its name."""
    if len(channels) == 1:
        return joined(word.text for word in channels[0])
    lines: list[tuple[str, list[FormattedWord]]] = []
    for name, words in named_passages(channels):
        if not lines or lines[-1][0] != name:
            lines.append((name, []))
        lines[-1][1].extend(words)
    return "\n".join(label_of(name) + joined(word.text for word in words) for name, words in lines)


def named_cues(channels: Sequence[Words]) -> list[Cue]:
    """Return the cues of all channels; each begins with the name of its channel if there are several."""
    labels = [label_of(name_of(number, len(channels))) for number in range(len(channels))]
    return [cue for words, label in zip(channels, labels, strict=True) for cue in cues(words, label)]
