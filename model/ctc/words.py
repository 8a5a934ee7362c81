"""A recognised word, and the interface of every CTC decoder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias
from model.text.letters import IDEOGRAPHS

LogProbs = NDArray[np.float32]

SecondPass = Callable[[], "tuple[Word, ...]"]
"""Decodes a segment again; on any thread."""

PCM = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Heard:
    """The audio (S,) of a stream's output frames from `frame` on, and all that came with them into the network."""

    pcm: PCM
    frame: int


_BETWEEN_IDEOGRAPHS = re.compile(f"(?<=[{IDEOGRAPHS}，。？]) (?=[{IDEOGRAPHS}])")  # or behind a mark


@dataclass(frozen=True, slots=True)
class Word:
    """Times in seconds since the decoder state was started; confidence in 0..1."""

    text: str
    start_s: float
    end_s: float
    confidence: float


def digest_of(*parts: str) -> str:
    """Return a digest of the parts that also depends on where one ends and the next begins."""
    return hashlib.sha256(
        "".join(f"{len(part)}:{part}" for part in parts).encode(errors="backslashreplace")
    ).hexdigest()


def joined(texts: Iterable[str]) -> str:
    """Words side by side, with a space between two unless both are of a script that is written without spaces."""
    text = " ".join(texts)
    return text if text.isascii() else _BETWEEN_IDEOGRAPHS.sub("", text)


def continued(before: str, text: str) -> str:
    """What further text adds to one that was sent: itself, behind a space where `joined` would have one."""
    last = before[-1:]
    return joined([last, text])[1:] if last and text else text


class DecoderState(Protocol):
    """The part of a stream's decoder state that callers may read; the rest is private to the decoder."""

    @property
    def frames(self) -> int:
        """Output frames decoded so far, without those skipped at the start."""

    @property
    def silence_frames(self) -> int:
        """Frames since the last letter; spaces count as silence."""

    @property
    def has_text(self) -> bool:
        """True if the open segment holds a letter."""

    @property
    def revision(self) -> int:
        """A number that grows whenever the words change."""


class Decoder(Protocol):
    """Incremental CTC decoding, batched over streams; greedy and beam search implement it.

    A state belongs to one stream and changes only by calls for it. Calls for different streams may come from different
    threads at once. The open segment is the decoded text that was not taken yet.
    """

    @property
    def supports_bias(self) -> bool:
        """True if key terms have an effect."""

    @property
    def digest(self) -> str:
        """Hexadecimal digest of all that its results depend on: equal decoders can load each other's states."""

    def warm_up(self) -> None:
        """Compile and load now, before the first stream would wait for it."""

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> Any:
        """Return a fresh state that ignores the first `skip_frames` frames: they lie before the audio."""

    def set_bias(self, state: Any, bias: Bias) -> None:
        """Replace the stream's key terms, from the next frame on."""

    def release(self, state: Any) -> None:
        """Free a state's memory at once; dropping the state does so, too. Raises: ValueError the second time."""

    def advance(self, states: Sequence[Any], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`."""

    def save(self, state: Any) -> bytes:
        """Return all of a state but its key terms, for `load`; the state stays usable."""

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> Any:
        """Return the saved state, given its key terms again. Raises: ValueError for damaged or foreign bytes."""

    def words(self, state: Any) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""

    def stable_words(self, state: Any) -> int:
        """Number of `words`, from the first, that can no longer change."""

    def take(self, state: Any, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment."""


@runtime_checkable
class TwoPass(Protocol):
    """An offer of a decoder that can decode the open segment again, with more work; found by its attribute."""

    @property
    def rereads(self) -> bool:
        """Whether it does so with another network, which needs the audio."""

    def again(self, state: Any, heard: Heard | None = None) -> SecondPass | None:
        """Return what decodes the open segment again, whatever happens to the state since. Call it before `take`.

        `heard` is the audio, for a decoder that rereads. It returns the words of the segment, maybe none. The stable
        ones are unchanged, unless it rereads. None where there is nothing to do.
        """
