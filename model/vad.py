"""Voice activity detection: the Silero network as a step function, its state one row per stream.

The weights come from the installed `silero_vad` package, whose model object holds the state of one stream; here the
same small network is rebuilt with its state as an argument. It knows no threshold and no endpoint rule. The package is
read, never imported: importing it sets torch's thread count for the whole process.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from model.errors import CheckpointError, install_hint
from model.torch_network.slabs import RowSpec
from model.torch_network.slots import TorchSlots

# Source: silero-vad 6.2.3. Its tinygrad_model.py spells the network out; the TorchScript file is what its
# load_silero_vad() runs. (Its data/silero_vad_16k.safetensors has the same shapes, but another training's weights.)
WEIGHTS = "data/silero_vad.jit"
CONTEXT = 64  # samples of the previous step that a step reads again
WINDOW, HOP, BINS = 256, 128, 129  # of the spectrum, in samples and frequency bins
FRAMES = 4  # spectra in a step
HIDDEN = 128
STRIDES = (1, 2, 2, 1)  # of the four convolutions; kernel 3, one zero on each side


class SileroVad:
    """The probability of speech in each 32 ms of audio; satisfies `StepModel` by structure."""

    sample_rate = 16_000
    step_samples = 512

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._device = device

        def weight(name: str) -> Tensor:
            return weights[f"_model.{name}"].detach().to(device)

        self._spectrum = weight("stft.forward_basis_buffer").squeeze(1)  # (2 * BINS, WINDOW): cosines, then sines
        self._convolutions = [
            (
                weight(f"encoder.{layer}.reparam_conv.weight").permute(2, 0, 1).contiguous(),  # (3, C', C)
                weight(f"encoder.{layer}.reparam_conv.bias"),
                stride,
            )
            for layer, stride in enumerate(STRIDES)
        ]
        self._lstm = [weight(f"decoder.rnn.{part}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        self._head = weight("decoder.decoder.2.weight").flatten()  # (HIDDEN,)
        self._head_bias = weight("decoder.decoder.2.bias")

    @classmethod
    def load(cls, *, device: str = "cpu") -> SileroVad:
        """Read the weights from the installed package.

        Raises: CheckpointError if the package is not installed, or its weights are not those of this network.
        """
        found = importlib.util.find_spec("silero_vad")  # looks for it, does not import it
        if found is None or not found.submodule_search_locations:
            raise CheckpointError(f"voice activity detection needs the silero-vad package: {install_hint('vad')}")
        path = Path(found.submodule_search_locations[0]) / WEIGHTS
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, which the package chose
                network = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
            return cls(network.state_dict(), torch.device(device))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not hold the network of silero-vad 6.2.3: {error}") from error

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._device

    @property
    def input_spec(self) -> RowSpec:
        """16-bit PCM, 32 ms."""
        return RowSpec((self.step_samples,), torch.int16)

    @property
    def state_spec(self) -> Mapping[str, RowSpec]:
        """The LSTM's two vectors and the last samples of the previous step."""
        return {
            "h": RowSpec((HIDDEN,), torch.float32),
            "c": RowSpec((HIDDEN,), torch.float32),
            "context": RowSpec((CONTEXT,), torch.int16),
        }

    @property
    def min_rows(self) -> int:
        """From sixteen rows on, a row has the same bits in every batch. Source: tests/model/test_vad.py, on x86."""
        return 16

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> TorchSlots:
        """Return the network over `capacity` streams, as `TorchSlots` describes."""
        return TorchSlots(self, capacity=capacity, largest=largest, tile_rows=tile_rows)

    def step(self, inputs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, 512) int16 at 16 kHz -> probability of speech (B, 1) float32, new state."""
        heard = torch.cat([state["context"], inputs], dim=1)  # (B, CONTEXT + 512)
        x = self._magnitudes(heard.float() / 32_768.0)
        for weight, bias, stride in self._convolutions:
            x = _convolve(x, weight, bias, stride)
        h, c = torch.lstm_cell(x.squeeze(1), (state["h"], state["c"]), *self._lstm)
        # Two traps for equal bits in every batch. A product with a single column takes its order of summation from the
        # batch's size: hence a plain sum. The last bit of a sigmoid depends on the element's place in a vector
        # register: hence float64, where that bit is lost in rounding back.
        logit = (h.relu() * self._head).sum(dim=1, keepdim=True) + self._head_bias  # (B, 1)
        return logit.double().sigmoid().float(), {"h": h, "c": c, "context": heard[:, -CONTEXT:]}

    def _magnitudes(self, audio: Tensor) -> Tensor:
        """(B, CONTEXT + 512) -> (B, FRAMES, BINS): magnitudes of four overlapping windows."""
        audio = functional.pad(audio, (0, CONTEXT), "reflect")
        windows = audio.unfold(1, WINDOW, HOP).reshape(-1, WINDOW)  # (B * FRAMES, WINDOW)
        power = functional.linear(windows, self._spectrum).square_()  # (B * FRAMES, 2 * BINS)
        return (power[:, :BINS] + power[:, BINS:]).sqrt_().view(-1, FRAMES, BINS)


def _convolve(x: Tensor, taps: Tensor, bias: Tensor, stride: int) -> Tensor:
    """(B, T, C) -> (B, T', C'): one zero frame on each side, kernel 3, ReLU; taps (3, C', C).

    Products, because a library convolution chooses its algorithm by the batch's size, and is slower below 100 rows.
    One for each tap, because three short sums lose less to fp32 than one long sum, a quarter as much here, and this
    network amplifies that loss: its weights reach 55.
    """
    streams, frames, channels = x.shape
    x = functional.pad(x, (0, 0, 1, 1))  # (B, T + 2, C)
    left, middle, right = (x[:, tap : tap + frames : stride].reshape(-1, channels) for tap in range(3))  # (B * T', C)
    out = functional.linear(middle, taps[1], bias)  # (B * T', C')
    out += functional.linear(left, taps[0]) + functional.linear(right, taps[2])
    return out.relu_().view(streams, -1, len(bias))
