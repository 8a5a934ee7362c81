"""Configuration of an attention network: the sizes and symbols of its training, and the form of its steps.

The network is a Conformer without positions: a convolution of stride 2 over 10 ms features, then blocks of feed-forward
layer, attention, convolution and feed-forward layer, then a linear head. Source: Gulati et al. 2020, arXiv:2005.08100.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from model.config import BEAMS, ENGLISH, REACH, TAIL_FRAMES, ModelConfig

ATTENTION_ARCHITECTURE = "ctc-attention"
HOPS = 2  # 10 ms features a frame
GELU_FACTOR = 1.702  # x σ(1.702 x) is GELU within 0.02. Source: Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2


@dataclass(frozen=True, slots=True)
class StepForm:
    """What a step computes: `new` frames, with `ahead` more after them as context that the next step computes again.

    `left`: frames before the window that attention reaches.
    """

    new: int = 12
    ahead: int = 8
    left: int = 108

    @property
    def window(self) -> int:
        """Frames that a step computes."""
        return self.new + self.ahead


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Sizes, features and symbols of one network; a frame is 20 ms.

    A frame's outputs are those of the vocabulary, then a blank and the phones, as of `model.config.ModelConfig`.
    """

    search_limits: ClassVar[tuple[int, float]] = (256, 12.0)  # of twice the frames a word. Source: model/LOG.md
    interim_limits: ClassVar[tuple[int, float]] = (BEAMS, REACH)  # if the segment is searched again
    name: str = "tutti"
    version: str = "0"
    sample_rate: int = 16_000
    window_samples: int = 400
    hop_samples: int = 160
    fft_size: int = 512
    mel_bins: int = 80
    mel_low_hz: float = 20.0
    mel_high_hz: float = 7_600.0
    width: int = 144
    heads: int = 4
    blocks: int = 4
    feed_forward: int = 576
    kernel: int = 31  # frames of the convolutions, half of them before a frame
    form: StepForm = field(default_factory=StepForm)
    vocabulary: tuple[str, ...] = ENGLISH
    phones: tuple[str, ...] = ()
    language: str = "en"  # a tag of BCP 47
    training: dict[str, Any] = field(default_factory=dict)
    weights: str = ""  # name of the checkpoint in the same folder whose tensors it has; empty: it has its own

    def __post_init__(self) -> None:
        """Raises: ValueError for sizes that the network cannot have."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} is not odd")
        if self.form.new < 1 or self.form.ahead < 0 or self.form.left < 1:
            raise ValueError(f"no step has the form {self.form}")

    @property
    def architecture(self) -> str:
        """Its kind."""
        return ATTENTION_ARCHITECTURE

    @property
    def trained_name(self) -> str:
        """Name of its weights, which forms share."""
        return self.weights or self.name

    @property
    def languages(self) -> tuple[str, ...]:
        """Language tags of what it recognizes."""
        return (self.language,)

    @property
    def outputs(self) -> int:
        """Number of log-probabilities of a frame."""
        return len(self.vocabulary) + (1 + len(self.phones) if self.phones else 0)

    @property
    def head_width(self) -> int:
        """Values of a key."""
        return self.width // self.heads

    @property
    def before(self) -> int:
        """Frames before a frame that its convolutions read, and after it."""
        return self.kernel // 2

    @property
    def frame_samples(self) -> int:
        """Samples of a frame."""
        return HOPS * self.hop_samples

    @property
    def frame_s(self) -> float:
        """Seconds of a frame (0.02)."""
        return self.frame_samples / self.sample_rate

    @property
    def frames_per_step(self) -> int:
        """Frames of a step."""
        return self.form.new

    @property
    def step_samples(self) -> int:
        """Samples of a step."""
        return self.form.new * self.frame_samples

    @property
    def lead_samples(self) -> int:
        """0: a step needs no audio before its own."""
        return 0

    @property
    def lookahead(self) -> int:
        """Frames that a step reads ahead."""
        return self.form.ahead

    @property
    def delay_frames(self) -> int:
        """Frames by which outputs lag the audio: a step outputs the frames before those that it reads ahead."""
        return self.form.ahead

    @property
    def segment_context(self) -> bool:
        """True: in a whole segment attention reaches frames of 4 s before and after its own."""
        return True

    @property
    def doubts_steady_audio(self) -> bool:
        """True: networks trained on speech alone recognize words in noise."""
        return True

    @property
    def least_confidence(self) -> float:
        """Barks, clatter and wind give words of less, speech one of more in nearly every segment (model/LOG.md)."""
        return 0.25

    @property
    def flush_steps(self) -> int:
        """Steps of silence that flush the frames read ahead, and `TAIL_FRAMES` more."""
        return -(-(self.form.ahead + TAIL_FRAMES) // self.form.new)

    @property
    def product_operations(self) -> float:
        """Multiplications and additions of a feed-forward layer's first product, for a stream."""
        return 2.0 * self.form.window * self.width * self.feed_forward

    @property
    def step_operations(self) -> float:
        """Multiplications and additions of one step of one stream in the weight matrices."""
        width = self.width
        block = 4 * width * self.feed_forward + 7 * width**2
        frame = 3 * self.mel_bins * width + self.blocks * block
        return 2.0 * (self.form.window * frame + self.form.new * width * self.outputs)

    def steps_of(self, samples: int) -> int:
        """Number of steps of a recording of this many samples, including the flush; at least 1."""
        return max(1, -(-samples // self.step_samples) + self.flush_steps)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        values = dataclasses.asdict(self)
        if not self.weights:
            del values["weights"]
        return {"architecture": self.architecture, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> AttentionConfig:
        """Rebuild from `to_dict`. Raises: ValueError for an unknown or a missing field."""
        known = {item.name for item in dataclasses.fields(cls)}
        values = {key: value for key, value in values.items() if key != "architecture"}
        if unknown := set(values) - known:
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        if missing := known - {"weights"} - set(values):
            raise ValueError(f"missing fields: {', '.join(sorted(missing))}")
        symbols = {name: tuple(values[name]) for name in ("vocabulary", "phones")}
        return cls(**values | symbols | {"form": StepForm(**values["form"])})


OwnConfig = ModelConfig | AttentionConfig
"""Configuration of a network of this project."""


def own_config_of(values: dict[str, Any]) -> OwnConfig:
    """Rebuild a configuration from its `to_dict`. Raises: ValueError."""
    kind = AttentionConfig if values.get("architecture") == ATTENTION_ARCHITECTURE else ModelConfig
    return kind.from_dict(values)
