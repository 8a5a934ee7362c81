"""Export of the network as an ONNX file in the format of a streaming NeMo CTC model, for sherpa-onnx.

This format has frames of sherpa's features as input, two caches, and the blank as last symbol. GRU states are in
`cache_last_channel` (B, layers, 1, H), the rest of a stream's state, flattened, in `cache_last_time` (B, 1, 1, E).
The outputs are only the letters: such a runtime has one vocabulary, so phones are left out.
sherpa computes the features: Hann windows, Slaney's mel filters from 0 to 8 kHz, logarithm. They differ from ours, so
the graph starts with a map from its mel energies to ours.
"""

from __future__ import annotations

import importlib
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.audio.mel import FLOOR, mel_filters
from model.config import CONTEXT, ModelConfig
from model.torch_network.network import Network, State

OPSET = 17
EXAMPLE_ROWS = 2
PRE_EMPHASIS = 0.97  # Kaldi's default, which sherpa uses; with it in the map texts are closer to ours
BLANK_TOKEN = "<blk>"  # noqa: S105 - a symbol of the vocabulary
SPACE_TOKEN = "▁"  # noqa: S105 - the same


def sherpa_filters(config: ModelConfig) -> Tensor:
    """Return sherpa's filters for NeMo models, including pre-emphasis of the power, (fft_size // 2 + 1, F) float64.

    Source: M. Slaney, Auditory Toolbox (1998): linear below 1 kHz (200/3 Hz per mel), then 27 mel per factor of 6.4;
    all filters have the same area.
    """
    hz = torch.linspace(0, config.sample_rate / 2, config.fft_size // 2 + 1, dtype=torch.float64)
    top = _slaney_mel(torch.tensor(config.sample_rate / 2, dtype=torch.float64)).item()
    edges = _slaney_hz(torch.linspace(0, top, config.mel_bins + 2, dtype=torch.float64))
    rising = (hz[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hz[:, None]) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rising, falling).clamp_min(0) * (2 / (edges[2:] - edges[:-2]))
    angle = torch.linspace(0, math.pi, hz.numel(), dtype=torch.float64)
    return filters * (1 + PRE_EMPHASIS**2 - 2 * PRE_EMPHASIS * torch.cos(angle))[:, None]


def _slaney_mel(hz: Tensor) -> Tensor:
    log_step = torch.log(torch.tensor(6.4, dtype=torch.float64)) / 27
    return torch.where(hz < 1000, hz * 3 / 200, 15 + torch.log(hz.clamp_min(1e-9) / 1000) / log_step)


def _slaney_hz(mel: Tensor) -> Tensor:
    log_step = torch.log(torch.tensor(6.4, dtype=torch.float64)) / 27
    return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * log_step))


def energies_map(config: ModelConfig) -> Tensor:
    """Return (F, F) float32 that maps sherpa's mel energies to ours, by least squares over all spectra."""
    ours = torch.from_numpy(mel_filters(config)).double()
    solution: Tensor = torch.linalg.lstsq(sherpa_filters(config), ours).solution
    return solution.float()


class StreamingCtc(nn.Module):
    """The network with sherpa's features and caches, for chunks of exactly one step."""

    energies: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("energies", energies_map(network.config))

    @property
    def cache_width(self) -> int:
        """Number of values of `cache_last_time`: E."""
        c = self.network.config
        return CONTEXT * (c.mel_bins + c.conv_channels) + c.lookahead * c.hidden

    def forward(
        self, audio_signal: Tensor, length: Tensor, channel: Tensor, time: Tensor, channel_len: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Log-mel (B, F, 4n) of sherpa and the caches -> log-probs (B, n, V) blank last, lengths, next caches."""
        energies = torch.exp(audio_signal.transpose(1, 2)) @ self.energies  # (B, 4n, F)
        features = torch.log(energies.clamp_min(0) + FLOOR)
        return self.from_log_mel(features, length, channel, time, channel_len)

    def from_log_mel(
        self, log_mel: Tensor, length: Tensor, channel: Tensor, time: Tensor, channel_len: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """As `forward`, from our own log-mel energies (B, 4n, F)."""
        front = self.network.features
        logits, after = self.network.encode((log_mel - front.mean) * front.scale, self._unpack(channel, time))
        letters = self.network.parts(logits)[0]
        log_probs = torch.log_softmax(letters, dim=2)  # (B, n, V)
        blank_last = torch.cat([log_probs[:, :, 1:], log_probs[:, :, :1]], dim=2)
        states = torch.stack([after[f"gru{i}"] for i in range(channel.shape[1])], dim=1)  # (B, layers, H)
        rest = torch.cat([after[name].flatten(1) for name in ("conv0", "conv1", "lookahead")], dim=1)  # (B, E)
        frames = torch.div(length, 4, rounding_mode="floor")
        return blank_last, frames, states[:, :, None], rest[:, None, None], channel_len  # (B, 1, 1, E) of the rest

    def _unpack(self, channel: Tensor, time: Tensor) -> State:
        c = self.network.config
        flat = time[:, 0, 0]  # (B, E)
        sizes = [CONTEXT * c.mel_bins, CONTEXT * c.conv_channels, c.lookahead * c.hidden]
        conv0, conv1, lookahead = torch.split(flat, sizes, dim=1)
        state = {
            "conv0": conv0.reshape(-1, CONTEXT, c.mel_bins),
            "conv1": conv1.reshape(-1, CONTEXT, c.conv_channels),
            "lookahead": lookahead.reshape(-1, c.lookahead, c.hidden),
        }
        return state | {f"gru{i}": channel[:, i, 0] for i in range(c.layers)}


def fresh_caches(network: Network, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the caches of `rows` new streams."""
    c, width = network.config, StreamingCtc(network).cache_width
    empty = torch.zeros(rows, dtype=torch.int64)
    return torch.zeros(rows, c.layers, 1, c.hidden), torch.zeros(rows, 1, 1, width), empty


def metadata(network: Network) -> dict[str, str]:
    """Return the metadata that sherpa reads."""
    c = network.config
    frames = c.step_samples // c.hop_samples
    values = {
        "window_size": frames,
        "chunk_shift": frames,
        "subsampling_factor": 4,
        "vocab_size": len(c.vocabulary) - 1,  # without the blank, as in NeMo
        "cache_last_channel_dim1": c.layers,
        "cache_last_channel_dim2": 1,
        "cache_last_channel_dim3": c.hidden,
        "cache_last_time_dim1": 1,
        "cache_last_time_dim2": 1,
        "cache_last_time_dim3": StreamingCtc(network).cache_width,
        "model_type": "EncDecCTCModelBPE",
        "normalize_type": "",
        "comment": f"{c.name} {c.version}",
    }
    return {name: str(value) for name, value in values.items()}


def tokens(config: ModelConfig) -> str:
    """Return `tokens.txt`: a symbol and its number per line, the blank last."""
    symbols = [SPACE_TOKEN if symbol == " " else symbol for symbol in config.vocabulary[1:]]
    return "".join(f"{symbol} {number}\n" for number, symbol in enumerate([*symbols, BLANK_TOKEN]))


def export(network: Network, folder: Path) -> Path:
    """Write `model.onnx` and `tokens.txt`; return the model's path."""
    onnx = importlib.import_module("onnx")  # of the `onnx` extra
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    wrapped = StreamingCtc(network.float().eval()).eval()
    frames = network.config.step_samples // network.config.hop_samples
    signal = torch.zeros(EXAMPLE_ROWS, network.config.mel_bins, frames)
    length = torch.full((EXAMPLE_ROWS,), frames, dtype=torch.int64)
    names = ("audio_signal", "length", "cache_last_channel", "cache_last_time", "cache_last_channel_len")
    outputs = ("logprobs", "encoded_lengths", *(f"{name}_next" for name in names[2:]))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about loop lengths that become constants, which is intended
        torch.onnx.export(
            wrapped,
            (signal, length, *fresh_caches(network, EXAMPLE_ROWS)),
            str(path),
            input_names=list(names),
            output_names=list(outputs),
            dynamic_axes={name: {0: "N"} for name in (*names, *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(path))
    for name, value in metadata(network).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    onnx.save(model, str(path))
    (folder / "tokens.txt").write_text(tokens(network.config), encoding="utf-8")
    return path


def quantize(path: Path) -> Path:
    """Write `model.int8.onnx` next to the model: onnxruntime's dynamic quantization, as in sherpa's exports."""
    onnx = importlib.import_module("onnx")
    quantization = importlib.import_module("onnxruntime.quantization")
    model, to = onnx.load(str(path)), path.with_suffix(".int8.onnx")
    _give_products_their_own_weights(model)
    floats = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # the exporter does not name types
    quantization.quantize_dynamic(model, str(to), weight_type=quantization.QuantType.QUInt8, extra_options=floats)
    return to


def _give_products_their_own_weights(model: Any) -> None:
    """Copy the weight of a GRU's product per frame, because the quantizer transposes a shared weight at each use."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    seen: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if node.op_type == "Gemm" and node.input[1] in seen:
            copy = model.graph.initializer.add()
            copy.CopyFrom(weights[node.input[1]])
            copy.name = node.input[1] = f"{node.input[1]}_{number}"
        elif node.op_type == "Gemm":
            seen.add(node.input[1])
