"""The file of packed layers: written once, mapped by later loads without reading the weights, and of the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from model.acoustic import log_probs_of
from model.published.compiled import compiling, linears
from model.published.compiled.linears import pack
from model.published.compiled.packed import SUFFIX, PackedLayers
from model.published.published_model import PublishedModel
from model.published.scales import FILE
from tests.support.networks.compiled import SIZES, write_scales
from tests.support.networks.probes import make_probe

PCM = [np.random.default_rng(1).integers(-9_000, 9_000, 48_000, dtype=np.int16)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packed")
    make_probe("nemo-ctc", made, **SIZES["nemo-ctc"])
    write_scales(made)
    return made


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of the file, after one that cannot be written."""
    monkeypatch.setattr(compiling, "cache_dirs", lambda _: (Path("/proc/none"), tmp_path))
    return tmp_path


def outputs(folder: Path) -> bytes:
    return log_probs_of(PublishedModel.load(folder, device="cpu"), PCM)[0].tobytes()


def packed_files(places: Path) -> list[Path]:
    return sorted(places.glob(f"*{SUFFIX}"))


def test_later_loads_map_the_file_and_read_no_weights(
    folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = outputs(folder)
    (path,) = packed_files(places)
    assert path.stat().st_mode & 0o777 == 0o644
    packed_again: list[str] = []
    monkeypatch.setattr(compiling, "pack", None)  # would fail
    monkeypatch.setattr(linears, "pack", lambda linear: packed_again.append(linear.name) or pack(linear))
    assert outputs(folder) == first
    assert packed_again == ["layer 0 positions", "layer 1 positions"]  # whose products are computed at each load
    packed = PackedLayers(path)
    assert packed.scale("subsampling 0") is not None
    assert packed.scale("outputs") is None
    for part in packed.parts("layer 0 product 1").values():
        assert not part.flags.writeable
        assert part.ctypes.data % 64 == 0


def test_without_a_writable_folder_the_layers_are_packed_in_memory(
    folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = outputs(folder)
    monkeypatch.setattr(compiling, "cache_dirs", lambda _: (Path("/proc/none"),))
    assert outputs(folder) == first


@pytest.mark.parametrize("size", [0, 7, 4_096, -1])
def test_a_damaged_file_is_written_again(size: int, folder: Path, places: Path) -> None:
    first = outputs(folder)
    (path,) = packed_files(places)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert outputs(folder) == first
    assert path.read_bytes() == whole


def test_a_file_of_other_scales_is_removed(folder: Path, places: Path, tmp_path: Path) -> None:
    outputs(folder)
    (path,) = packed_files(places)
    old, other = path.with_name(f"model.onnx-0123456789abcdef{SUFFIX}"), places / f"encoder.onnx-01{SUFFIX}"
    path.rename(old)
    other.write_bytes(b"")
    outputs(folder)
    assert packed_files(places) == sorted([path, other])


def test_a_write_that_fails_leaves_nothing(folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("model.published.compiled.packed._append", full)
    assert PublishedModel.load(folder, device="cpu").precision == "int8"
    assert [each.name for each in places.iterdir() if FILE not in each.name and "compiled" not in each.name] == []
