"""Published probes in 8-bit integers whose step is compiled: one of each kind that has such a step."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from model.machine.device import Device
from model.published.compiled.compiling import PublishedNetwork
from model.published.compiled.linears import Linear
from model.published.compiled.transducer.checking import read_weights
from model.published.files import find_files
from model.published.published_model import PublishedModel
from model.published.scales import Scale, Scales, digest_of_weights
from tests.support.networks.folders import process_folder
from tests.support.networks.probes import make_probe

SEARCH = ("joiner", "decoder", "prediction")  # first words of the names of products of decoder and joiner
ZIPFORMER: dict[str, Any] = {
    "encoder_dims": (64, 64),
    "feedforward_dims": (64, 64),
    "query_head_dims": (16, 16),
    "value_head_dims": (12, 12),
    "num_heads": (4, 4),
}
SIZES: dict[str, dict[str, Any]] = {
    "nemo-ctc": {"hidden": 64},
    "nemo-transducer": {"hidden": 64, "pred_hidden": 32, "pred_rnn_layers": 2, "exported": True},
    "zipformer2-ctc": ZIPFORMER,
    "zipformer2-transducer": ZIPFORMER | {"joiner_dim": 64, "exported": True},
}


@cache
def compiled_folder(kind: str) -> Path:
    """Return the folder of a probe with scales, created once."""
    folder = process_folder(kind)
    make_probe(kind, folder, **SIZES[kind])
    write_scales(folder)
    return folder


@cache
def compiled_model(kind: str) -> PublishedModel:
    """Return the loaded model of a kind, loaded for the second time: without a session of its network."""
    first = PublishedModel.load(compiled_folder(kind), device="cpu")
    model = PublishedModel.load(compiled_folder(kind), device="cpu")
    assert model.digest == first.digest
    return model


def write_scales(folder: Path) -> None:
    """Write scales of fixed ranges for all products but the outputs of a CTC network, as `tutti quantize` would."""
    files = find_files(folder, "fp32")
    model = PublishedModel.of(files, Device("cpu"), in_floats=True)
    linears = [*PublishedNetwork.read(files, in_floats=True).compiled.linears]
    linears = linears[:-1] if model.transducer is None else [*linears, *search_linears(model)]
    weights = {linear.name: digest_of_weights(linear.weight) for linear in linears}
    scales = {name: Scale.of(-2, 2) if name.startswith(SEARCH) else Scale.of(-8, 8) for name in weights}
    Scales(files.digest(), scales, weights).write(folder)


def search_linears(model: PublishedModel) -> tuple[Linear, ...]:
    """Return the linear layers of a transducer's decoder and joiner."""
    files = model.transducer
    assert files is not None
    return read_weights(files.decoder, files.joiner, recurrent=files.recurrent is not None).linears
