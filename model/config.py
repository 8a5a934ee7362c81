"""Configuration of a model: everything of its training that inference must repeat. It is stored beside the weights.

Also the number of hypotheses that beam search keeps: light to import, for settings and help texts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT_VERSION = 5  # of those read too, 4 has no backward layers, 3 no language either, 2 no phones, 1 no integers
_READ = (1, 2, 3, 4, FORMAT_VERSION)
SHIPPED_WEIGHTS = Path(__file__).parent / "weights"
OWN_ARCHITECTURE = "ctc-rnn"
BLANK = 0
TAIL_FRAMES = 2
"""Output frames after the last audio in which letters may still come: the network writes a letter after its sound,
not at its start. Source: measured on recordings cut sharply, model/LOG.md."""
PAIRS = 3  # a convolution covers three pairs of frames (kernel 6, stride 2) and carries two pairs over
CONTEXT = 2 * (PAIRS - 1)  # frames of context that a convolution carries over
MAX_BEAMS = 1_024  # beyond 512 nothing is gained; a stream then takes 3.5 MB. Source: model/LOG.md
BEAMS = 128  # kept by default. Source: model/LOG.md
MACRO_LANGUAGES = {"cmn": "zh"}
"""Languages that are called by the tag of the group that they are the most usual of. Source: RFC 5646, 2.2.2."""
ENGLISH = ("", " ", "'", *"abcdefghijklmnopqrstuvwxyz")  # index 0 is the CTC blank


def shipped_named(name: str) -> Path | None:
    """The shipped checkpoint of a name, `tutti-medium` or `medium`; None if no model is named so."""
    candidates = (SHIPPED_WEIGHTS / f"{each}.safetensors" for each in (name, f"tutti-{name}"))
    return next((path for path in candidates if path.with_suffix(".json").exists()), None)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes, features and vocabulary of one network.

    An output frame holds the log-probabilities of the vocabulary, and behind them those of a blank and the phones, if
    it hears any; each of the two sums to 1. Two convolutions of stride 2 turn 10 ms feature frames into 40 ms output
    frames, so `step_samples` must be a multiple of four hops. `lookahead` counts the output frames that the row
    convolution waits for. `backward` are the numbers of the layers that run from the end of the audio to its start: a
    network with any reads whole segments, and serves no streams.
    """

    name: str = "tutti-small"
    version: str = "0"
    sample_rate: int = 16_000
    step_samples: int = 1_280  # 80 ms: two output frames a step
    window_samples: int = 400  # 25 ms
    hop_samples: int = 160  # 10 ms
    fft_size: int = 512
    mel_bins: int = 80
    mel_low_hz: float = 20.0
    mel_high_hz: float = 7_800.0
    conv_channels: int = 256
    hidden: int = 416
    layers: int = 3
    backward: tuple[int, ...] = ()
    lookahead: int = 8  # 320 ms
    vocabulary: tuple[str, ...] = ENGLISH
    phones: tuple[str, ...] = ()
    language: str = "en"  # a tag of BCP 47
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: ValueError for sizes that the network cannot have."""
        if self.step_samples % (4 * self.hop_samples):
            raise ValueError(f"step_samples {self.step_samples} is not a multiple of 4 hops of {self.hop_samples}")
        if self.window_samples > self.fft_size or self.hop_samples > self.window_samples:
            raise ValueError("hop_samples <= window_samples <= fft_size does not hold")
        if not set(self.backward) <= set(range(self.layers)):
            raise ValueError(f"backward {self.backward} names a layer that is none of {self.layers}")
        if not self.vocabulary or self.vocabulary[BLANK] != "":
            raise ValueError("vocabulary[0] must be the CTC blank, written as the empty string")

    @property
    def outputs(self) -> int:
        """Log-probabilities of an output frame."""
        return len(self.vocabulary) + (1 + len(self.phones) if self.phones else 0)

    @property
    def frame_samples(self) -> int:
        """Samples that one output frame stands for."""
        return 4 * self.hop_samples

    @property
    def frame_s(self) -> float:
        """Seconds that one output frame stands for (0.04)."""
        return self.frame_samples / self.sample_rate

    @property
    def frames_per_step(self) -> int:
        """Output frames that one step yields."""
        return self.step_samples // self.frame_samples

    @property
    def architecture(self) -> str:
        """Its kind."""
        return OWN_ARCHITECTURE

    @property
    def languages(self) -> tuple[str, ...]:
        """What it recognises."""
        return (self.language,)

    @property
    def lead_samples(self) -> int:
        """None: a step needs no audio but its own."""
        return 0

    @property
    def delay_frames(self) -> int:
        """Output frames by which the outputs trail the audio: a fresh stream's first outputs lie before its audio."""
        return self.lookahead

    @property
    def doubts_steady_audio(self) -> bool:
        """True: networks that learned from speech alone find words in noise."""
        return True

    @property
    def flush_steps(self) -> int:
        """Steps of silence that push the last letters out: through the lookahead buffer, and `TAIL_FRAMES` more."""
        return -(-(self.lookahead + TAIL_FRAMES) // self.frames_per_step)

    def steps_of(self, samples: int) -> int:
        """Steps of a recording of so many samples, with those of the flush; 1 at least."""
        return max(1, -(-samples // self.step_samples) + self.flush_steps)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, with the first format version that has all that it says."""
        values = dataclasses.asdict(self)
        if not self.backward:
            del values["backward"]
        return {"format_version": FORMAT_VERSION if self.backward else FORMAT_VERSION - 1, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Rebuild from `to_dict`. Raises: ValueError for another format version, an unknown or a missing field."""
        found = values.get("format_version")
        if found not in _READ:
            raise ValueError(f"format version {found!r}, this program reads up to {FORMAT_VERSION}")
        known = {f.name for f in dataclasses.fields(cls)}
        given = {k: v for k, v in values.items() if k != "format_version"}
        if unknown := set(given) - known:
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        if missing := known - {"phones", "language", "backward"} - set(given):
            raise ValueError(f"missing fields: {', '.join(sorted(missing))}")
        symbols: dict[str, Any] = {name: tuple(given.get(name, ())) for name in ("vocabulary", "phones", "backward")}
        return cls(**given | symbols)
