"""Figures of the speakers of mixed conversations: words with the right speaker, number of voices, diarization error.

`python -m tutti_asr_lab.training.speakers.diarization DATA` writes tables; DATA is the folder of speech. It needs
`pip install -e ./lab[speakers]`. Words are labeled as a live
stream labels them, in the final result of their phrase (`live`), and with all of the recording (`whole`).
"Lost" and "marked": `lost_and_marked`.
The diarization error is that of pyannote.metrics, without and with a collar of 0.25 s on both sides.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from model.speakers.online import OnlineSpeakers
from model.speakers.slot_model import SAMPLE_RATE, STEP_SAMPLES, SpeakerModel, load_speaker_model
from model.speakers.whole import nearest, speakers_of_recording
from tutti_asr_lab.training.speakers.conversations import PCM, Band, Conversation, Part, Spoken, mix, part_of, voices_of

PAUSE_S, DELAY_S = 0.3, 0.5
"""Pause after a phrase, and the time from its last word to its final result."""
MARKED_S = 1.5
COLLAR_S = 0.5  # pyannote's: of both sides together

Labels = Sequence[int]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of a conversation (N, SIZE) and the times of their windows (N, 2) in seconds."""

    vectors: NDArray[np.float32]
    spans_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over conversations."""

    words: float
    """Share of the words with the right speaker."""
    voices: float
    """Share of the conversations whose number of speakers is right."""
    error: float
    error_with_collar: float


def vectors_of(conversations: Sequence[Conversation], model: SpeakerModel) -> list[Vectors]:
    """Run all conversations at once, as streams of one model."""
    steps = [len(one.pcm) // STEP_SAMPLES for one in conversations]
    vectors: list[list[NDArray[np.float32]]] = [[] for _ in conversations]
    spans: list[list[tuple[float, float]]] = [[] for _ in conversations]
    for first in range(0, len(conversations), model.capacity):
        group = range(first, min(first + model.capacity, len(conversations)))
        for slot in range(len(group)):
            model.reset(slot)
        for step in range(max(steps[number] for number in group)):
            open_ones = [number for number in group if step < steps[number]]
            for row, number in enumerate(open_ones):
                model.inputs[row] = conversations[number].pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES]
            end_s = (step + 1) * STEP_SAMPLES / SAMPLE_RATE
            for number, row in zip(open_ones, model.run([number - first for number in open_ones]), strict=True):
                if row[0]:
                    vectors[number].append(row[1:])
                    spans[number].append((end_s - float(row[0]), end_s))
    return [
        Vectors(np.array(a, np.float32).reshape(len(a), -1), np.array(b, np.float64).reshape(len(b), 2))
        for a, b in zip(vectors, spans, strict=True)
    ]


def live_labels(words: Sequence[Spoken], measured: Vectors, *, listens: bool = False) -> Labels:
    """Return the speaker of each word as the final result of its phrase gives it; -1 for none.

    `listens`: as in a stream with `speaker=first`.
    """
    speakers, at, labels = OnlineSpeakers(listens=listens), 0, [-1] * len(words)
    order = sorted(range(len(words)), key=lambda index: words[index].end_s)
    phrase: list[int] = []
    for index, following in itertools.zip_longest(order, order[1:]):
        phrase.append(index)
        if following is not None and words[following].start_s - words[index].end_s < PAUSE_S:
            continue
        while at < len(measured.vectors) and measured.spans_s[at, 1] <= words[index].end_s + DELAY_S:
            speakers.take(measured.vectors[at], *measured.spans_s[at])
            at += 1
        for member in phrase:
            speaker, _ = speakers.speaker_at(words[member].start_s, words[member].end_s)
            labels[member] = -1 if speaker is None else speaker
        phrase = []
    return labels


def whole_labels(words: Sequence[Spoken], measured: Vectors) -> Labels:
    """Return the speaker of each word by all vectors of a recording."""
    labels = speakers_of_recording(measured.vectors, measured.spans_s)
    return (
        [int(labels[nearest(measured.spans_s, word.start_s, word.end_s)]) for word in words]
        if len(labels)
        else [0] * len(words)
    )


def lost_and_marked(conversations: Sequence[Conversation], measured: Sequence[Vectors]) -> tuple[float, float]:
    """Return what `speaker=first` does live: the share of the first voice's words that are marked as another one's.

    And that of the other voices' words in turns of at least `MARKED_S`.
    """
    counts = np.zeros((2, 2), np.int64)  # other voice, marked
    for conversation, vectors in zip(conversations, measured, strict=True):
        words = conversation.words
        first = min(words, key=lambda word: word.start_s).speaker
        long = [turn for turn in conversation.turns if turn.end_s - turn.start_s >= MARKED_S]
        for word, label in zip(words, live_labels(words, vectors, listens=True), strict=True):
            middle = (word.start_s + word.end_s) / 2
            if word.speaker == first or any(
                turn.speaker == word.speaker and turn.start_s <= middle <= turn.end_s for turn in long
            ):
                counts[int(word.speaker != first), int(label > 0)] += 1
    lost, marked = counts[:, 1] / np.maximum(counts.sum(axis=1), 1)
    return float(lost), float(marked)


def right(words: Sequence[Spoken], labels: Labels) -> int:
    """Return the number of words with the right speaker, by the best assignment of labels to speakers."""
    counts: dict[tuple[int, int], int] = {}
    for word, label in zip(words, labels, strict=True):
        counts[word.speaker, label] = counts.get((word.speaker, label), 0) + 1
    speakers = sorted({word.speaker for word in words})
    numbers = sorted({label for label in labels if label >= 0}, key=lambda label: -list(labels).count(label))[:7]
    numbers += [-2] * (len(speakers) - len(numbers))  # speakers of no label
    best = 0
    for order in itertools.permutations(numbers, len(speakers)):
        best = max(best, sum(counts.get(pair, 0) for pair in zip(speakers, order, strict=True)))
    return best


def voices(labels: Labels, least: int = 3) -> int:
    """Return the number of speakers with at least a second of words."""
    return sum(labels.count(label) >= least for label in set(labels) if label >= 0)


def figures(
    conversations: Sequence[Conversation],
    measured: Sequence[Vectors],
    label: Callable[[Sequence[Spoken], Vectors], Labels],
    errors: Sequence[Any] = (),
) -> Figures:
    """Return the figures of conversations with their vectors; `errors`: pyannote's, without and with a collar."""
    total = correct = counted = 0
    for conversation, vectors in zip(conversations, measured, strict=True):
        labels = list(label(conversation.words, vectors))
        total += len(labels)
        correct += right(conversation.words, labels)
        counted += voices(labels) == len({one.speaker for one in conversation.words})
        for error in errors:
            _add(error, conversation, labels)
    values = [abs(error) for error in errors[:2]] or [float("nan")] * 2
    return Figures(correct / total, counted / len(conversations), *values)


def _add(error: Any, conversation: Conversation, labels: Labels) -> None:
    from pyannote.core import Annotation, Segment, Timeline  # of an extra of its own

    reference, hypothesis = Annotation(), Annotation()
    for place, turn in enumerate(conversation.turns):
        reference[Segment(turn.start_s, turn.end_s), place] = f"{turn.speaker}"
    for place, (word, label) in enumerate(zip(conversation.words, labels, strict=True)):
        hypothesis[Segment(word.start_s, word.end_s), place] = f"{label}"
    error(reference, hypothesis, uem=Timeline([Segment(0, len(conversation.pcm) / SAMPLE_RATE)]))


GROUPS = {
    "adults": ("librispeech_devclean_mp3", "librispeech"),
    "learners": ("speechocean762",),
    "own microphones": ("commonvoice_en",),
}
"""Groups of speakers by the sources of their recordings."""
SETS: tuple[tuple[str, Band, int, float, int], ...] = (
    ("adults", "wide", 2, 0.0, 72), ("adults", "mulaw", 2, 0.0, 72),
    ("learners", "wide", 2, 0.0, 72), ("learners", "mulaw", 2, 0.0, 24),
    ("own microphones", "wide", 2, 0.0, 24),
    ("adults", "wide", 2, 0.2, 16), ("adults", "wide", 3, 0.0, 12), ("adults", "wide", 4, 0.0, 12),
    ("adults", "mulaw", 4, 0.0, 12),
    ("adults", "wide", 1, 0.0, 24), ("adults", "mulaw", 1, 0.0, 24), ("learners", "wide", 1, 0.0, 72),
)  # fmt: skip
"""Group, band, voices, share of overlapping turns, conversations."""
TURNS = {1: 6, 2: 10, 3: 12, 4: 16}
LONGEST_S = 240.0  # of a speaker's recordings


def recordings_of(data: Path, part: Part) -> dict[str, dict[str, list[PCM]]]:
    """Return the recordings of each group's speakers."""
    groups: dict[str, dict[str, list[PCM]]] = {group: {} for group in GROUPS}
    used: dict[str, float] = {}
    for manifest in ("librispeech_devclean_mp3", "speechocean762", "commonvoice_en", "dev"):
        for line in (data / f"{manifest}.jsonl").read_text().splitlines():
            row = json.loads(line)
            speaker, source = row["speaker"], "dev" if manifest == "dev" else row["source"]
            group = next((name for name, sources in GROUPS.items() if row["source"] in sources), None)
            if group is None or part_of(source, speaker) != part or used.get(speaker, 0.0) > LONGEST_S:
                continue
            used[speaker] = used.get(speaker, 0.0) + row["duration"]
            pcm, rate = soundfile.read(data / row["audio"], dtype="int16")
            if rate == SAMPLE_RATE and len(pcm) > 1.5 * rate:
                groups[group].setdefault(speaker, []).append(pcm)
    enough = 8 * SAMPLE_RATE
    return {
        group: {name: said for name, said in speakers.items() if sum(map(len, said)) > enough}
        for group, speakers in groups.items()
    }


def main() -> None:
    """Write the tables."""
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", choices=("tune", "report"), default="report")
    options = parser.parse_args()
    groups, model = recordings_of(options.data, options.part), load_speaker_model(24)
    titles = (
        "voices",
        "band",
        "number",
        "overlap",
        "",
        "words",
        "number right",
        "DER",
        "collar",
        "JER",
        "lost, marked",
    )
    sys.stdout.write(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n")
    for place, (group, band, count, overlap, conversations) in enumerate(SETS):
        dice = np.random.default_rng(place)
        mixed = [
            mix(voices_of(groups[group], dice, count), dice, turns=TURNS[count], overlap=overlap, band=band)
            for _ in range(conversations)
        ]
        measured = vectors_of(mixed, model)
        for name, label in (("live", live_labels), ("whole", whole_labels)):
            errors = (DiarizationErrorRate(), DiarizationErrorRate(collar=COLLAR_S), JaccardErrorRate())
            result = figures(mixed, measured, label, errors)
            numbers = [result.words, result.voices, result.error, result.error_with_collar, abs(errors[2])]
            numbers += lost_and_marked(mixed, measured) if name == "live" and count == 2 and not overlap else ()
            cells = (group, band, f"{count}", f"{overlap:.0%}", name, *(f"{figure:.3f}" for figure in numbers))
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
