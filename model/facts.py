"""The form of an acoustic model, and the facts about it without its weights, which can be pickled.

A process that computes no steps builds its decoders from the facts that another one sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from model.attention_config import OwnConfig
from model.config import BLANK
from model.ctc.tokens import Tokens
from model.description import ModelDescription
from model.machine.device import CPU, Device
from model.prompts import Prompts


class TransducerSource(Protocol):
    """Where a transducer's prediction network and joiner are: `model.published.transducer_files.TransducerFiles`."""

    @property
    def digest(self) -> str:
        """Digest of the model."""

    def load(self) -> Any:
        """Return the networks. Raises: PublishedModelError."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Configuration, digest, number format (as `--precision` names it), device and symbols of a loaded model.

    A transducer's decoder needs two small networks more, which it loads by `transducer`.
    """

    config: ModelDescription
    digest: str
    precision: str
    device: Device
    tokens: Tokens
    transducer: TransducerSource | None = None  # its outputs are then frames for these networks, not log-probabilities
    one_row: bool = False  # its graph takes a batch of one row
    undivided: str = ""  # why a step has one thread though more were asked for; empty if it has them
    prompts: Prompts | None = None  # languages that a stream may choose; then a step ends with the choice

    @classmethod
    def own(cls, config: OwnConfig, digest: str = "", precision: str = "", device: Device = CPU) -> ModelFacts:
        """Return the facts about a model of this project."""
        return cls(config, digest, precision, device, Tokens.of(config.vocabulary, BLANK))

    @property
    def published(self) -> bool:
        """Whether others published it: it is not a model of this project."""
        return not isinstance(self.config, OwnConfig)

    @property
    def row_samples(self) -> int:
        """Numbers of a step's row: its samples, and 1 + the number of its language if streams may choose one, or 0."""
        return self.config.step_samples + (self.prompts is not None)

    @property
    def own_config(self) -> OwnConfig:
        """Configuration of a model of this project, one that is not `published`."""
        assert isinstance(self.config, OwnConfig), "it is published"
        return self.config


class Slots(Protocol):
    """A model with states in numbered slots: `batching.slot_model.SlotModel`, which says what each part means."""

    @property
    def capacity(self) -> int:
        """Number of slots."""

    @property
    def inputs(self) -> NDArray[Any]:
        """(largest, S) int16: rows for the next steps, of `ModelFacts.row_samples`."""

    @property
    def state_bytes(self) -> int:
        """Size of an exported state in bytes."""

    def run(self, slots: Sequence[int]) -> NDArray[Any]:
        """Step these slots."""

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state."""

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state."""


class AcousticModel(Protocol):
    """A loaded acoustic model: int16 PCM in steps, outputs of frames out."""

    @property
    def config(self) -> ModelDescription:
        """Its sample rate, step and symbols."""

    @property
    def facts(self) -> ModelFacts:
        """What decoders and a server need of it."""

    @property
    def threads(self) -> int:
        """Number of compute threads of a step."""

    @property
    def weight_bytes(self) -> int:
        """Size of the weights that a step reads, in bytes."""

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> Slots:
        """Return the model over `capacity` streams, in batches of at most `largest`.

        With `tile_rows` its arithmetic runs on exactly that many rows at a time, where that makes a difference.
        """

    def recurrent_product(self, rows: int) -> Callable[[], object] | None:
        """Return the largest product of a step on noise, for separate timing; None for a published model."""
