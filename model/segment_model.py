"""The model that reads whole segments: the layers above a shipped streaming network, in a file of their own.

`python -m model.segment_model CHECKPOINT` makes that file of what `tutti train` wrote. Each matrix is stored as 8-bit
integers with a scale a row, and multiplied out when it is read: it computes in float32, one segment at a time, so a
segment's outputs depend on no other.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model import checkpoint
from model.config import ModelConfig
from model.ctc.two_pass import Reader
from model.errors import CheckpointError, ModelError
from model.torch_network.segment_network import ABOVE, SegmentNetwork

SHIPPED = checkpoint.WEIGHTS / "tutti-segments.safetensors"
LARGEST = 127
_SCALE = "_scale"


class SegmentModel:
    """int16 PCM (S,) of a segment to log-probs (T, outputs); the same frames that a stream has had by then."""

    def __init__(self, network: SegmentNetwork, digest: str) -> None:
        """`digest` is that of its file, which names its trunk's."""
        self.network, self.digest = network.eval(), digest

    @classmethod
    def load(cls, path: Path = SHIPPED) -> SegmentModel:
        """Read a file that `save` wrote, and the shipped streaming network that it stands on.

        Raises: CheckpointError naming the file, what is wrong with it, and what to do.
        """
        config, tensors, digest = checkpoint.read(path)
        trunk_path = checkpoint.named(Path(config.training["trunk"]["name"]))
        trunk, trunk_digest = checkpoint.load(trunk_path)
        if trunk_digest != config.training["trunk"]["sha256"]:
            raise CheckpointError(f"{path} stands on another {trunk_path.name}: install both from one release")
        network = SegmentNetwork(config)
        network.load_state_dict({**trunk.state_dict(), **_multiplied_out(tensors)})
        return cls(network, digest)

    @property
    def config(self) -> ModelConfig:
        """The configuration of its training."""
        return self.network.config

    @torch.inference_mode()
    def read(self, pcm: NDArray[np.int16]) -> NDArray[np.float32]:
        """Return the log-probs of a segment, whose length is a whole number of output frames, beyond the lookahead."""
        network = self.network
        log_probs, _ = network(torch.from_numpy(pcm)[None], network.fresh_state(1))  # (1, T, outputs)
        rows: NDArray[np.float32] = log_probs[0, self.config.delay_frames :].numpy()
        return rows


def save(network: SegmentNetwork, trunk: str, path: Path) -> None:
    """Write what stands above the shipped network named `trunk`. Raises: CheckpointError if it is another one's."""
    below, digest = checkpoint.load(checkpoint.named(Path(trunk)))
    own = network.state_dict()
    if any(not torch.equal(own[name], weight) for name, weight in below.state_dict().items() if not _is_above(name)):
        raise CheckpointError(f"the layers below are not those of {trunk}: train with frozen_trunk, from {trunk}")
    training = {**network.config.training, "trunk": {"name": trunk, "sha256": digest}}
    tensors: dict[str, Tensor] = {}
    for name, weight in own.items():
        if _is_above(name):
            tensors |= _rounded(name, weight) if weight.ndim == 2 else {name: weight.contiguous()}
    checkpoint.write(path, dataclasses.replace(network.config, training=training), tensors)


def _is_above(name: str) -> bool:
    return name.startswith(ABOVE)


def _rounded(name: str, weight: Tensor) -> dict[str, Tensor]:
    scale = weight.abs().amax(dim=1).clamp_min(1e-12) / LARGEST  # (out,)
    return {name: torch.round(weight / scale[:, None]).to(torch.int8), name + _SCALE: scale}


def _multiplied_out(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    scaled = {name: t.to(torch.float32) for name, t in tensors.items() if not name.endswith(_SCALE)}
    return {name: t * tensors[name + _SCALE][:, None] if name + _SCALE in tensors else t for name, t in scaled.items()}


def reader_for(config: ModelConfig, path: Path = SHIPPED) -> Reader | None:
    """What reads the ended segments of a streaming model: the shipped one, if both write the same symbols.

    It is loaded by the thread that reads the first segment. Raises: CheckpointError.
    """
    if not path.exists():
        return None
    own, digest = checkpoint.outline(path)
    same = [(each.vocabulary, each.phones, each.frame_samples, each.delay_frames) for each in (own, config)]
    if same[0] != same[1]:
        return None
    return Reader(lambda pcm: _kept(path).read(pcm), own.frame_samples, digest)


@lru_cache(maxsize=1)
def _kept(path: Path) -> SegmentModel:
    return SegmentModel.load(path)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="what `tutti train` wrote, with frozen_trunk in its recipe")
    parser.add_argument("--trunk", default="tutti-medium", help="the shipped model that it began from [%(default)s]")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="the file to write [%(default)s]")
    options = parser.parse_args()
    try:
        network, _ = checkpoint.load(options.checkpoint)
        if not isinstance(network, SegmentNetwork):
            raise CheckpointError(f"{options.checkpoint} has no bidirectional_layers: it is a streaming model")
        save(network, options.trunk, options.out)
    except ModelError as error:
        sys.exit(f"error: {error}")
    print(options.out)  # noqa: T201


if __name__ == "__main__":
    main()
