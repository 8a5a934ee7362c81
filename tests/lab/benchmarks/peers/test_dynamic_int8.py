"""Dynamic int8 files of published models: made from the graphs in floats, or copied if the model has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.published.files import find_files
from model.published.published_model import PublishedModel
from tests.support.needs import need_package
from tests.support.networks.published import probe_of

need_package("onnx")
need_package("onnxruntime")

from tutti_asr_lab.benchmarks.peers.dynamic_int8 import write  # noqa: E402 - needs onnxruntime


@pytest.mark.parametrize("variant", ["zipformer2-ctc", "nemo-ctc", "zipformer2-transducer", "nemo-transducer"])
def test_a_published_model_is_written_in_int8_and_loads(variant: str, tmp_path: Path) -> None:
    source = Path(probe_of(variant).folder)
    write(source, tmp_path / "int8")
    files = find_files(tmp_path / "int8")
    assert files.precision == "int8"
    floats = {role for role, path in files.graphs.items() if not path.name.endswith(".int8.onnx")}
    assert floats == ({"decoder", "joiner"} if variant == "nemo-transducer" else set())
    made, before = (
        PublishedModel.load(tmp_path / "int8", device="cpu", rewriting="off"),
        PublishedModel.load(source, device="cpu", rewriting="off"),
    )
    assert made.contract == before.contract
    assert made.tokens == before.tokens


def test_an_int8_file_of_the_model_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(Path(probe_of("zipformer2-ctc").folder), source)
    write(source, tmp_path / "target")
    assert (tmp_path / "target" / "model.int8.onnx").read_bytes() == (source / "model.int8.onnx").read_bytes()
