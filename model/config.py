"""Configuration of a model: all settings of its training that inference must repeat. It is stored next to the weights.

Also the number of hypotheses of beam search, because this module is cheap to import for settings and help texts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

FORMAT_VERSION = 4  # 3 has no language, 2 also no phones, 1 also no integers
_READ = (1, 2, 3, FORMAT_VERSION)
SHIPPED_WEIGHTS = Path(__file__).parent / "weights"
SHIPPED_LANGUAGES = {
    "tutti": "en", "tutti-fast": "en", "tutti-economy": "en", "tutti-gru": "en", "tutti-mandarin": "zh",
}  # fmt: skip
"""The shipped models and their languages: of models of one language, the first is the default."""
FORMER_NAMES = {"tutti-small": "tutti-gru"}
"""Names that shipped models had before, which requests and `--model` may still have."""
OWN_ARCHITECTURE = "ctc-rnn"
BLANK = 0
TAIL_FRAMES = 2
"""Output frames after the last audio in which letters may still be output: the network writes a letter after its sound,
not at its start. Source: measured on recordings with abrupt ends, model/LOG.md."""
PAIRS = 3  # pairs of frames covered by a convolution (kernel 6, stride 2), which carries over two pairs
CONTEXT = 2 * (PAIRS - 1)  # frames of context that a convolution carries over
MAX_BEAMS = 1_024  # more than 512 has no benefit; a stream then takes 3.5 MB. Source: model/LOG.md
BEAMS, REACH = 128, 10.0  # default hypotheses, and how many nats below the best they may be. Source: model/LOG.md
MACRO_LANGUAGES = {"cmn": "zh"}
"""Languages that are usually tagged by their macrolanguage. Source: RFC 5646, section 2.2.2."""
ENGLISH = ("", " ", "'", *"abcdefghijklmnopqrstuvwxyz")  # index 0 is the CTC blank


def shipped_named(name: str) -> Path | None:
    """Return the shipped checkpoint named `tutti-gru` or `gru`, for example; None if there is none."""
    names = (name, f"tutti-{name}")
    paths = (SHIPPED_WEIGHTS / f"{FORMER_NAMES.get(full, full)}.safetensors" for full in names)
    return next((path for path in paths if path.with_suffix(".json").exists()), None)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes, features and vocabulary of one network.

    An output frame has the log-probabilities of the vocabulary, then those of a blank and the phones, if there are
    phones; the probabilities of each part sum to 1. Two convolutions of stride 2 turn 10 ms feature frames into 40 ms
    output frames, so `step_samples` must be a multiple of four hops. `lookahead`: number of output frames that the row
    convolution waits for.
    """

    search_limits: ClassVar[tuple[int, float]] = (BEAMS, REACH)
    name: str = "tutti-gru"
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
    lookahead: int = 8  # 320 ms
    vocabulary: tuple[str, ...] = ENGLISH
    phones: tuple[str, ...] = ()
    language: str = "en"  # a tag of BCP 47
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: ValueError for sizes that the network cannot have."""
        for item in dataclasses.fields(self):
            value, least = getattr(self, item.name), int(item.name != "lookahead")
            if item.type == "int" and (type(value) is not int or value < least):
                raise ValueError(f"{item.name} must be a whole number, at least {least}, not {value!r}")
        if self.step_samples % (4 * self.hop_samples):
            hops = f"{4 * self.hop_samples} (4 hops)"
            raise ValueError(f"step_samples must be a multiple of {hops}, not {self.step_samples}")
        if self.window_samples > self.fft_size or self.hop_samples > self.window_samples:
            raise ValueError("hop_samples <= window_samples <= fft_size is required")
        if not self.vocabulary or self.vocabulary[BLANK] != "":
            raise ValueError("vocabulary[0] must be the CTC blank, written as the empty string")

    @property
    def outputs(self) -> int:
        """Number of log-probabilities of an output frame."""
        return len(self.vocabulary) + (1 + len(self.phones) if self.phones else 0)

    @property
    def frame_samples(self) -> int:
        """Number of samples per output frame."""
        return 4 * self.hop_samples

    @property
    def frame_s(self) -> float:
        """Seconds per output frame (0.04)."""
        return self.frame_samples / self.sample_rate

    @property
    def frames_per_step(self) -> int:
        """Number of output frames per step."""
        return self.step_samples // self.frame_samples

    @property
    def architecture(self) -> str:
        """Its kind."""
        return OWN_ARCHITECTURE

    @property
    def trained_name(self) -> str:
        """Name of its weights."""
        return self.name

    @property
    def languages(self) -> tuple[str, ...]:
        """Language tags of what it recognizes."""
        return (self.language,)

    @property
    def lead_samples(self) -> int:
        """0: a step needs no audio before its own."""
        return 0

    @property
    def delay_frames(self) -> int:
        """Output frames by which outputs lag the audio: the first outputs of a new stream precede its audio."""
        return self.lookahead

    @property
    def segment_context(self) -> bool:
        """False: of a whole segment the network computes what it computes of a stream."""
        return False

    @property
    def doubts_steady_audio(self) -> bool:
        """True: networks trained on speech alone recognize words in noise."""
        return True

    @property
    def least_confidence(self) -> float:
        """0: its words count with any confidence."""
        return 0.0

    @property
    def flush_steps(self) -> int:
        """Steps of silence that flush the last letters through the lookahead buffer, and `TAIL_FRAMES` more."""
        return -(-(self.lookahead + TAIL_FRAMES) // self.frames_per_step)

    @property
    def product_operations(self) -> float:
        """Multiplications and additions of a GRU's recurrent product, the largest of a step, for a stream."""
        return 6.0 * self.hidden**2

    @property
    def step_operations(self) -> float:
        """Multiplications and additions of one step of one stream in the weight matrices."""
        conv0 = 2 * PAIRS * self.mel_bins * self.conv_channels
        conv1 = 2 * PAIRS * self.conv_channels * self.hidden
        grus, dense, head = self.layers * 6 * self.hidden**2, self.hidden**2, self.hidden * self.outputs
        return 2.0 * self.frames_per_step * (2 * conv0 + conv1 + grus + dense + head)  # conv0 has twice the frames

    def steps_of(self, samples: int) -> int:
        """Number of steps of a recording of this many samples, including the flush; at least 1."""
        return max(1, -(-samples // self.step_samples) + self.flush_steps)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Rebuild from `to_dict`. Raises: ValueError for another format version, an unknown or a missing field."""
        found = values.get("format_version")
        if found not in _READ:
            raise ValueError(f"format version {found!r} is not supported; this program reads up to {FORMAT_VERSION}")
        known = {f.name for f in dataclasses.fields(cls)}
        given = {k: v for k, v in values.items() if k != "format_version"}
        if unknown := set(given) - known:
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        if missing := known - {"phones", "language"} - set(given):
            raise ValueError(f"missing fields: {', '.join(sorted(missing))}")
        symbols: dict[str, Any] = {name: tuple(given.get(name, ())) for name in ("vocabulary", "phones")}
        return cls(**given | symbols)
