"""The interface of every CTC decoder, and what goes into and out of it; a recognized word is in `words.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.words import Word

LogProbs = NDArray[np.float32]

SecondPass = Callable[[], tuple[Word, ...]]
"""Second-pass decode of a segment; callable on any thread."""

PCM = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class FrameAudio:
    """Audio (S,) of a stream's output frames from `frame` on, including the context that the network read with them."""

    pcm: PCM
    frame: int


def digest_of(*parts: str) -> str:
    """Return a digest of the parts, including their boundaries."""
    return hashlib.sha256(
        "".join(f"{len(part)}:{part}" for part in parts).encode(errors="backslashreplace")
    ).hexdigest()


class DecoderState(Protocol):
    """Public fields of a stream's decoder state; all others are private to the decoder."""

    @property
    def frames(self) -> int:
        """Output frames decoded so far, without those skipped at the start."""

    @property
    def silence_frames(self) -> int:
        """Frames since the last letter; spaces count as silence."""

    @property
    def has_text(self) -> bool:
        """Whether the open segment contains a letter."""

    @property
    def revision(self) -> int:
        """A number that increases whenever the words change."""


class Decoder(Protocol):
    """Incremental CTC decoder, batched over streams; implemented by greedy and beam search.

    A state belongs to one stream and changes only by calls for that stream. Calls for different streams may run on
    different threads at the same time. The open segment is the decoded text that was not taken yet.
    """

    @property
    def supports_bias(self) -> bool:
        """Whether key terms have an effect."""

    @property
    def digest(self) -> str:
        """Hexadecimal digest of everything that its results depend on; decoders with equal digests can share states."""

    def warm_up(self) -> None:
        """Compile and load code now, so that the first stream need not wait."""

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> Any:
        """Return a new state that ignores the first `skip_frames` frames, which precede the audio."""

    def set_bias(self, state: Any, bias: Bias) -> None:
        """Replace the stream's key terms, from the next frame on."""

    def release(self, state: Any) -> None:
        """Free a state's memory now; garbage collection does it otherwise. Raises: ValueError the second time."""

    def advance(self, states: Sequence[Any], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`."""

    def copy(self, state: Any) -> Any:
        """Return an independent copy of a state, key terms included; release both."""

    def words(self, state: Any) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""

    def stable_words(self, state: Any) -> int:
        """Number of leading `words` that can no longer change."""

    def take(self, state: Any, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment."""


@runtime_checkable
class SavesStates(Protocol):
    """Optional capability of a decoder, detected by attribute: states as bytes, which resumable streams need."""

    def save(self, state: Any) -> bytes:
        """Serialize a state without its key terms, for `load`; the state stays usable."""

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> Any:
        """Deserialize a saved state; `bias` must be given again. Raises: ValueError for damaged or foreign bytes."""


@runtime_checkable
class FoldsStates(Protocol):
    """Optional capability of a decoder, detected by attribute: states that take less memory until their next use."""

    def fold(self, state: Any) -> None:
        """Serialize a state until its next use, which restores it; no result depends on this."""


@runtime_checkable
class ChecksTerms(Protocol):
    """Optional capability of a decoder, detected by attribute: which key terms it can recognize."""

    def unspeakable(self, bias: Bias) -> tuple[str, ...]:
        """Phrases that no symbols of the model express, such as Chinese characters for an English model."""


@runtime_checkable
class RatesWords(Protocol):
    """Optional capability of a decoder, detected by attribute: how frequent words are."""

    def word_log_prob(self, word: str) -> float:
        """Natural log-probability of a word without context; minus infinity for one that it does not know."""


@runtime_checkable
class Agreeing(Protocol):
    """Optional capability of a decoder with several hypotheses, detected by attribute: how far they agree."""

    def agreement(self, state: Any) -> Sequence[float]:
        """Share of the hypotheses' weight, 0 to 1, that agrees on the words up to each of `words`; not of all words."""


@runtime_checkable
class TwoPass(Protocol):
    """Optional capability of a decoder, detected by attribute: a second pass over the open segment."""

    @property
    def reads_audio(self) -> bool:
        """Whether the second pass needs the segment's audio."""

    def second_pass(self, state: Any, audio: FrameAudio | None) -> SecondPass | None:
        """Return a function for the second pass over the open segment, independent of later changes of the state.

        `audio`: of the latest frames; None if the second pass does not need it.

        The function returns the words of the segment, possibly none; stable words may change. None if there is nothing
        to do. Call it before `take`.
        """
