"""Speakers of one channel: vectors of voices in, words with their speakers out. Pure.

The recognizer's rows wait for the vectors of their audio, so a word's speaker depends on the audio up to the step of
its result, and on nothing else. Live results are never changed afterwards; a recording that is recognized as a whole is
clustered at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.ctc.words import Speaker, Word
from model.speakers.known_voice import KnownVoice, others_in_recording
from model.speakers.online import OnlineSpeakers
from model.speakers.vectors import mean_of, similarity
from model.speakers.whole import nearest, speakers_of_recording
from server.recognition.events import Final, Partial, VoiceVector
from server.recognition.results.pending_finals import PendingFinal
from server.recognition.segments.speaker_rules import SPEAKER_HZ, SPEAKER_WINDOW, SpeakerRules
from server.recognition.steps import WindowTag

Vector = NDArray[np.float32]  # (256,), norm 1
REACH_S = 0.5  # a change of speakers is moved to the longest pause within this time: vectors are no more exact
KEPT = 128  # vectors for the mean of a final: more than the longest has


class _Saved(msgspec.Struct, array_like=True, frozen=True):
    """State of `Speakers`."""

    online: bytes
    last: int
    order: tuple[int, ...]
    recent: tuple[tuple[float, float, bytes], ...]
    known: bytes = b""  # of a stream that listens to an enrolled voice; its vector is not in it


class Speakers:
    """Follows the voices of one channel."""

    def __init__(self, rules: SpeakerRules) -> None:
        self._rules = rules
        self._online = OnlineSpeakers(rules.maximum, listens=rules.listens and not rules.voice)
        self._known_voice = KnownVoice(np.frombuffer(rules.voice, np.float32)) if rules.voice else None
        self._ahead: deque[tuple[int, float, Vector]] = deque()  # (end sample, length in s, vector), not yet counted
        self._known = 0  # samples whose vectors are known
        self._last = 0  # cluster of the last word of a final
        self._order: dict[int, int] = {}  # numbers of speakers by cluster, in the order of the words of finals
        self._recent: deque[tuple[float, float, Vector]] = deque(maxlen=KEPT)
        self._all: list[tuple[float, float, Vector]] = []
        self.other_words = 0
        """Words of finals by other voices than the one that is listened to."""
        self.voices: dict[int, Vector] = {}
        """By speaker of a whole recording, the mean of its vectors, norm 1."""

    def take(self, row: WindowTag, result: NDArray[np.float32]) -> None:
        """Take the result of a window: (257,), its length in s and a vector, or 0."""
        if result[0]:
            self._ahead.append((row.end_sample, float(result[0]), result[1:]))
        self._known = row.end_sample

    def covers(self, end_sample: int) -> bool:
        """Return whether the results of all whole windows up to this sample are known."""
        return end_sample - self._known < SPEAKER_WINDOW

    def known_to(self, end_sample: int) -> None:
        """Record that the windows up to this sample were counted before a snapshot."""
        self._known = end_sample

    def follow(self, end_sample: int, end_s: float) -> None:
        """Count the vectors up to this sample, which is at `end_s` of stream time."""
        while self._ahead and self._ahead[0][0] <= end_sample:
            sample, length_s, vector = self._ahead.popleft()
            until_s = max(0.0, end_s - (end_sample - sample) / SPEAKER_HZ)
            since_s = max(0.0, until_s - length_s)
            if self._rules.at_end:
                self._all.append((since_s, until_s, vector))
                continue
            self._online.take(vector, since_s, until_s)
            if self._known_voice is not None:
                self._known_voice.take(vector, since_s, until_s)
            if self._rules.vectors:
                self._recent.append((since_s, until_s, vector))

    # Words

    def in_partial(self, partial: Partial) -> Partial:
        """Return a partial with the speakers of its words as far as they are known."""
        return msgspec.structs.replace(partial, words=self._with_speakers(partial.words))

    def in_final(self, final: Final | PendingFinal) -> Final | PendingFinal:
        """Return a final with the speakers of its words; those of a second pass get them as they are known now."""
        if self._rules.at_end:
            return final
        if isinstance(final, PendingFinal):
            words = self._with_speakers(final.first.words, settles=True)
            now, decode = self.copy(), final.decode
            final.decode = lambda: now._with_speakers(decode())
            final.first = replace(final.first, words=words, voice=self._voice_of(final.first))
            return final
        return replace(final, words=self._with_speakers(final.words, settles=True), voice=self._voice_of(final))

    def _voice_of(self, final: Final) -> VoiceVector | None:
        """Return the mean of the vectors whose middle is inside a final, if the stream asks for it and there is one."""
        end_s = final.start_s + final.duration_s
        windows = [window for window in self._recent if final.start_s <= (window[0] + window[1]) / 2 < end_s]
        if not (self._rules.vectors and windows):
            return None
        mean = mean_of(np.stack([vector for _, _, vector in windows]))
        return VoiceVector(tuple(mean.tolist()), windows[-1][1] - windows[0][0])

    def _with_speakers(self, words: Sequence[Word], *, settles: bool = False) -> tuple[Word, ...]:
        """Return words with their speakers, numbered in the order of finals' words; `settles`: these are of a final."""
        if self._rules.at_end or not words:
            return tuple(words)
        labels = [self._online.speaker_at(word.start_s, word.end_s) for word in words]
        before = self._last
        numbers = [before := before if number is None else number for number, _ in labels]
        clusters = changes_at_pauses(words, numbers)
        others = self._others(words)
        order = self._order if settles else dict(self._order)
        for cluster in clusters:
            order.setdefault(cluster, len(order))
        if settles:
            self._last = clusters[-1]
        return tuple([
            msgspec.structs.replace(word, speaker=self._labeled(order[cluster], round(confidence, 4), other=other))
            for word, cluster, (_, confidence), other in zip(words, clusters, labels, others, strict=True)
        ])  # fmt: skip

    def _others(self, words: Sequence[Word]) -> Sequence[int]:
        """Return for each word 1 if another voice than the enrolled one says it, else 0."""
        if self._known_voice is None:
            return [0] * len(words)
        return changes_at_pauses(words, [self._known_voice.is_other(word.start_s, word.end_s) for word in words])

    def _labeled(self, number: int, confidence: float, *, other: int) -> Speaker:
        """Return the speaker of a word; `other` counts if the stream listens to an enrolled voice."""
        is_other = bool(other) if self._rules.voice else number != 0
        return Speaker(number, confidence, self._rules.listens and is_other)

    def whole(self, words: Sequence[Word]) -> list[Speaker]:
        """Return the speakers of all words of a recording, clustered as a whole; in the order of their first words."""
        if not self._all:
            return [Speaker(0, 0.0)] * len(words)
        vectors = np.stack([vector for _, _, vector in self._all])
        spans_s = np.array([span for *span, _ in self._all], np.float64)
        rules = self._rules
        labels = speakers_of_recording(vectors, spans_s, rules.minimum, rules.maximum)
        means = {int(label): mean_of(vectors[labels == label]) for label in np.unique(labels)}
        near = [nearest(spans_s, word.start_s, word.end_s) for word in words]
        numbers = changes_at_pauses(words, [int(labels[at]) for at in near])
        others = [0] * len(words)
        if rules.voice:
            path = others_in_recording(vectors, spans_s, np.frombuffer(rules.voice, np.float32))
            others = changes_at_pauses(words, [path[at] for at in near])
        order: dict[int, int] = {}
        for number in numbers:
            order.setdefault(number, len(order))
        self.voices = {number: means[label] for label, number in order.items()} if words else means
        return [
            self._labeled(order[number], _confidence(vectors[at], means, number), other=other)
            for number, at, other in zip(numbers, near, others, strict=True)
        ]

    # Snapshots and copies

    def saved(self) -> bytes:
        """Return a snapshot, after `follow` and before vectors of later steps count."""
        recent = tuple([(since_s, until_s, vector.tobytes()) for since_s, until_s, vector in self._recent])
        known = b"" if self._known_voice is None else self._known_voice.state()
        return msgspec.msgpack.encode(_Saved(self._online.state(), self._last, tuple(self._order), recent, known))

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot. Raises: ValueError for bytes that are none."""
        saved = msgspec.msgpack.decode(state, type=_Saved)
        self._online.restore(saved.online)
        if self._known_voice is not None:
            self._known_voice.restore(saved.known)
        self._last = saved.last
        self._order = {cluster: number for number, cluster in enumerate(saved.order)}
        self._recent.extend(
            (since_s, until_s, np.frombuffer(vector, np.float32)) for since_s, until_s, vector in saved.recent
        )

    def copy(self) -> Speakers:
        """Return one that continues from the last step decoded; results that are ahead are not in it."""
        twin = Speakers(self._rules)
        twin._online, twin._last, twin._known = self._online.copy(), self._last, self._known
        twin._known_voice = None if self._known_voice is None else self._known_voice.copy()
        twin._order = dict(self._order)
        twin._recent.extend(self._recent)
        return twin


def changes_at_pauses(words: Sequence[Word], numbers: Sequence[int]) -> list[int]:
    """Return the speakers of words with each change moved to the longest pause within `REACH_S`, if one is longer."""
    settled = list(numbers)
    changes = [at for at in range(1, len(words)) if numbers[at] != numbers[at - 1]]
    after = 0  # the change before
    for change, until in pairwise([*changes, len(words)]):
        begin_s = words[change].start_s
        near = [at for at in range(after + 1, until) if abs(words[at].start_s - begin_s) <= REACH_S]
        moved = max(near, key=lambda at: (round(words[at].start_s - words[at - 1].end_s, 6), at == change))
        settled[after:moved] = [numbers[change - 1]] * (moved - after)
        settled[moved:until] = [numbers[change]] * (until - moved)
        after = moved
    return settled


def _confidence(vector: Vector, means: dict[int, Vector], number: int) -> float:
    """Return how much more similar a vector is to its speaker than to the next one, 0 to 1; 0.5: as similar."""
    others = [similarity(vector, mean) for label, mean in means.items() if label != number]
    own = similarity(vector, means[number])
    return round(min(1.0, max(0.0, own if not others else 0.5 + own - max(others))), 4)
