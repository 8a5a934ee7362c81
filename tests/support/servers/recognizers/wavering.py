"""A decoder like a beam search in the worst case: recent words change with every frame, old ones never.

Its search is greedy. A word counts as stable once it has been closed for `SETTLE_FRAMES`; until then it is
shown with a letter that changes, and sometimes not at all. The bias under which a word was closed becomes part of the
word, so that a bias that is applied too early, too late or to another stream is visible. States must be released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import LogProbs
from model.ctc.words import Word
from tests.support.servers.recognizers.spelling import CONFIG, spelling_decoder

SETTLE_FRAMES = 20


@dataclass(slots=True, eq=False)
class WaveringState:
    """The greedy state, and the frame and bias mark of each closed word."""

    inner: Any
    bias: Bias
    closed: list[tuple[int, str]] = field(default_factory=list)
    revision: int = 0

    @property
    def frames(self) -> int:
        return int(self.inner.frames)

    @property
    def silence_frames(self) -> int:
        return int(self.inner.silence_frames)

    @property
    def has_text(self) -> bool:
        return bool(self.inner.has_text)


class WaveringDecoder:
    """Implements `model.ctc.interface.Decoder`."""

    supports_bias = True

    def __init__(self) -> None:
        self._greedy = spelling_decoder()
        self.vocabulary, self.frame_s = CONFIG.vocabulary, CONFIG.frame_s
        self.open: set[int] = set()  # states that were not released
        self.started = 0

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> WaveringState:
        state = WaveringState(self._greedy.start(skip_frames), bias)
        self.open.add(id(state))
        self.started += 1
        return state

    def set_bias(self, state: WaveringState, bias: Bias) -> None:
        self._check(state)
        state.bias = bias

    def release(self, state: WaveringState) -> None:
        self._check(state)
        self.open.remove(id(state))

    def copy(self, state: WaveringState) -> WaveringState:
        self._check(state)
        twin = replace(state, inner=self._greedy.copy(state.inner), closed=list(state.closed))
        self.open.add(id(twin))
        return twin

    def advance(self, states: Sequence[WaveringState], log_probs: LogProbs) -> None:
        for row, state in enumerate(states):
            self._check(state)
            for frame in range(log_probs.shape[1]):
                self._greedy.advance([state.inner], log_probs[row : row + 1, frame : frame + 1])
                if len(state.inner.closed) > len(state.closed):
                    state.closed.append((state.frames, _mark(state.bias)))
                state.revision += 1

    def words(self, state: WaveringState) -> tuple[Word, ...]:
        self._check(state)
        shown = []
        stable = self.stable_words(state)
        for i, word in enumerate(self._greedy.words(state.inner)):
            mark = state.closed[i][1] if i < len(state.closed) else _mark(state.bias)
            wavering = "" if i < stable else "xyz"[state.frames % 3]
            shown.append(msgspec.structs.replace(word, text=word.text + mark + wavering))
        return tuple(shown[:-1] if len(shown) > max(stable, 1) and state.frames % 5 == 0 else shown)

    def stable_words(self, state: WaveringState) -> int:
        self._check(state)
        return sum(state.frames - frame >= SETTLE_FRAMES for frame, _ in state.closed)

    def take(self, state: WaveringState, count: int | None = None) -> tuple[Word, ...]:
        taken = self.words(state) if count is None else self.words(state)[:count]
        self._greedy.take(state.inner, count)
        del state.closed[: len(state.closed) if count is None else len(taken)]
        state.revision += 1
        return taken

    def _check(self, state: WaveringState) -> None:
        assert id(state) in self.open, "used after its release, or released twice"


def _mark(bias: Bias) -> str:
    return "".join(f"+{phrase}" for phrase, _ in bias.phrases)
