"""Write transcripts as text, subtitles or JSON lines to standard output, a file, or a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from model.ctc.words import Speaker, Word
from server.audio import formats
from server.protocols.deepgram.messages import UtteranceOut
from server.protocols.deepgram.transcript import utterances
from server.text.formatting import FormattedWord
from server.text.speaker_turns import SPLIT_S
from server.text.subtitles import SubtitleFormat, cues, cues_by_speaker, speaker_name, subtitles
from server.tools.recordings import STDIN, BadInput
from tutti_asr_client import messages
from tutti_asr_client.files.display import Display, JsonLines
from tutti_asr_client.files.file_result import Failed, FileResult, Transcribed
from tutti_asr_client.messages import Results, shown
from tutti_asr_client.transcript import Transcript

SUFFIXES = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json"}


def format_of(requested: str | None, out: Path | None) -> str:
    """Return the requested format, else that of the output's suffix, else text."""
    if requested is not None:
        return requested
    named = {suffix: name for name, suffix in SUFFIXES.items()}
    return named.get("" if out is None else out.suffix.lower(), "text")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a transcript is written: by utterance, and with the speakers' names where channels were separated."""

    form: str
    by_utterance: bool = False
    multichannel: bool = False
    names: Sequence[str] = ()
    speakers: bool = False  # whether they are distinguished, instead of channels

    def label(self, channel: int) -> str:
        """Return what stands in front of a channel's words, as "Caller: "."""
        if not self.multichannel:
            return ""
        return f"{self.names[channel] if self.names else f'Channel {channel + 1}'}: "


def rendered(result: Transcribed, layout: Layout) -> str:
    """Return a transcript as text or subtitles."""
    if layout.form != "text" and layout.speakers:
        form = SubtitleFormat(layout.form)
        (words,) = _formatted(result)
        return subtitles(form, cues_by_speaker(form, words, speaker_name))
    if layout.form != "text":
        all_cues = (cue for at, words in enumerate(_formatted(result)) for cue in cues(words, layout.label(at)))
        return subtitles(SubtitleFormat(layout.form), all_cues)
    if layout.speakers:
        return "".join(f"{speaker_name(one.speaker or 0)}: {one.transcript}\n" for one in utterances_of(result))
    if layout.multichannel or layout.by_utterance:
        return "".join(f"{layout.label(one.channel)}{one.transcript}\n" for one in utterances_of(result))
    return result.text + "\n"


def utterances_of(result: Transcribed) -> list[UtteranceOut]:
    """Return what was said between pauses, of all channels in order of time."""
    return utterances(_formatted(result), SPLIT_S, punctuated=True, request_id=str(result.path))


def _formatted(result: Transcribed) -> list[list[FormattedWord]]:
    """Return the words of each channel."""
    channels = result.channels or (result.words,)
    return [[FormattedWord(_word(word), shown(word)) for word in words] for words in channels]


def _word(word: messages.Word) -> Word:
    speaker = Speaker(word.speaker, 0.0) if isinstance(word.speaker, int) else None
    return Word(word.word, word.start, word.end, word.confidence, speaker=speaker)


def outputs_of(recordings: Sequence[Path], roots: Sequence[Path], out: Path, form: str) -> dict[Path, Path]:
    """Return the output file of each recording: `out` for a single one, else a file in the folder `out`.

    Raises: BadInput if a folder is missing, or if two transcripts would go to the same file.
    """
    one_file = len(recordings) == 1 and not out.is_dir() and not any(root.is_dir() for root in roots)
    if one_file:
        if not out.parent.is_dir():
            raise BadInput(f"--out: no such folder: {out.parent}")
        targets = {recordings[0]: out}
    else:
        if out.exists() and not out.is_dir():
            raise BadInput(f"--out: {out} is a file; give a folder for several transcripts")
        targets = {path: out / _transcript(_relative(path, roots), form) for path in recordings}
    taken: dict[Path, Path] = {}
    for path, target in targets.items():
        if target in taken:
            raise BadInput(f"--out: {taken[target]} and {path} would both be written to {target}")
        if target.exists() and any(path != STDIN and target.samefile(path) for path in recordings):
            raise BadInput(f"--out: {target} is one of the recordings")
        taken[target] = path
    return targets


def _transcript(recording: Path, form: str) -> Path:
    """Return a recording's name with the suffix of a transcript: "1.2 lesson" has no suffix that could go."""
    known = recording.suffix.lower()[1:] in formats.SUFFIXES
    return recording.with_name(f"{recording.stem if known else recording.name}{SUFFIXES[form]}")


def _relative(path: Path, roots: Sequence[Path]) -> Path:
    if path == STDIN:
        return Path("stdin")
    root = next((root for root in roots if root.is_dir() and root in path.parents), path.parent)
    return path.relative_to(root)


class TextOutput(Display):
    """Writes complete transcripts in the order of the recordings; failures go to `complain`."""

    def __init__(
        self,
        recordings: Sequence[Path],
        layout: Layout,
        complain: Callable[[str], None],
        targets: dict[Path, Path] | None = None,
    ) -> None:
        self._order = list(recordings)
        self._layout = layout
        self._complain = complain
        self._targets = targets
        self._done: dict[Path, list[FileResult]] = {}

    def done(self, result: FileResult) -> None:
        """Write the result, and later ones that were waiting for it."""
        self._done.setdefault(result.path, []).append(result)
        while self._order and self._done.get(self._order[0]):
            path = self._order.pop(0)
            self._write(path, self._done[path].pop(0))

    def _write(self, path: Path, result: FileResult) -> None:
        if isinstance(result, Failed):
            self._complain(f"{path}: {result.problem}")
        elif self._targets is None:
            sys.stdout.write(rendered(result, self._layout))
            sys.stdout.flush()
        else:
            target = self._targets[path]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(rendered(result, self._layout), encoding="utf-8")


class JsonOutput(Display):
    """Writes JSON lines to standard output or to the file of each recording."""

    def __init__(self, layout: Layout, targets: dict[Path, Path] | None = None) -> None:
        self._layout = layout
        self._targets = targets
        self._open: dict[Path, TextIO] = {}

    def results(self, path: Path, results: Results, transcript: Transcript) -> None:
        """Write the finals."""
        JsonLines(self._out(path)).results(path, results, transcript)

    def done(self, result: FileResult) -> None:
        """Write the closing line."""
        further: dict[str, object] = {}
        if self._layout.by_utterance and isinstance(result, Transcribed):
            further["utterances"] = utterances_of(result)
        JsonLines(self._out(result.path)).done(result, **further)
        if self._targets is not None:
            self._open.pop(result.path).close()

    def _out(self, path: Path) -> TextIO:
        if self._targets is None:
            return sys.stdout
        if path not in self._open:
            self._targets[path].parent.mkdir(parents=True, exist_ok=True)
            self._open[path] = self._targets[path].open("w", encoding="utf-8")
        return self._open[path]
