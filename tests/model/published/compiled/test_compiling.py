"""Which models run a compiled step: those whose step gives what the graph gives, as a kept verdict says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from model.acoustic import log_probs_of
from model.errors import PublishedModelError
from model.published.compiled import compiling
from model.published.compiled.compiling import PublishedNetwork
from model.published.compiled.fastconformer.network import FastConformer
from model.published.graphs.metadata import Graph
from model.published.graphs.onnx_file import OnnxFile, external_files
from model.published.graphs.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from model.published.rows import SPEECH, check_rows
from model.recordings import read_pcm
from tests.support.networks.probes import make_probe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_probe("nemo-ctc", tmp_path_factory.mktemp("compiled"), hidden=64).folder)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder in which verdicts are kept, after one that cannot be written."""
    monkeypatch.setattr(compiling, "cache_dirs", lambda _: (Path("/proc/none"), tmp_path))
    return tmp_path


def load(folder: Path, **options: str) -> PublishedModel:
    return PublishedModel.load(folder, device="cpu", **options)  # type: ignore[arg-type]


def test_the_step_in_floats_has_the_symbols_of_the_graph_and_a_digest_of_its_own(folder: Path, places: Path) -> None:
    published, model = load(folder, rewriting="off"), load(folder)
    assert (published.verdict, published.compiled) == (None, None)
    assert published.digest == published.files.digest() != model.digest
    assert model.precision == "fp32"
    assert model.config.version == model.digest[:12]
    pcm = [np.random.default_rng(1).integers(-9_000, 9_000, 48_000, dtype=np.int16)]
    one, other = (log_probs_of(each, pcm)[0] for each in (published, model))
    np.testing.assert_allclose(one, other, atol=1e-4)
    assert np.array_equal(one.argmax(-1), other.argmax(-1))
    assert check_rows(model, model.tokens.blank).dependent_bits == ()


def test_a_verdict_is_kept_and_spares_the_session(folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(folder)
    (kept,) = places.iterdir()
    assert json.loads(kept.read_text())["applied"]
    monkeypatch.setattr(Graph, "of", None)  # a session would fail
    again = load(folder)
    assert again.verdict == first.verdict
    assert again.digest == first.digest
    kept.write_text("{damaged")
    with pytest.raises(TypeError):
        load(folder)


@pytest.mark.parametrize("fault", [np.float32(0.1), np.float32(np.nan)])
def test_a_step_with_other_results_does_not_run(
    fault: np.float32, folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FastConformer.read

    def faulty(*given: object) -> FastConformer:
        network = read(*given)  # type: ignore[arg-type]
        first, *others = network.weights.layers
        norm = replace(first.norms[4], bias=first.norms[4].bias + np.arange(64, dtype=np.float32) % 2 * fault)
        layers = (replace(first, norms=(*first.norms[:4], norm)), *others)
        return FastConformer(replace(network.weights, layers=layers))

    monkeypatch.setattr(compiling, "READERS", {"nemo-ctc": faulty})
    for _ in range(2):  # compared, then read
        model = load(folder)
        assert model.compiled is None
        assert model.verdict is not None
        assert model.verdict.reason.startswith("its signal-to-noise ratio to the graph is ")
    assert model.digest == model.files.digest()


def test_a_graph_with_branches_runs_as_published() -> None:
    branch = onnx.helper.make_graph([], "branch", [], [])
    node = onnx.helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    graph = onnx.helper.make_graph([node], "graph", [], [])
    with pytest.raises(PublishedModelError, match="a node If with graphs of its own"):
        OnnxGraph.read(onnx.helper.make_model(graph))


def test_weights_in_a_file_of_their_own_are_mapped_and_give_the_same_step(
    folder: Path, places: Path, tmp_path: Path
) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "tokens.txt").write_bytes((folder / "tokens.txt").read_bytes())
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, apart / "model.onnx", save_as_external_data=True, location="weights", size_threshold=1_024)
    together, found = load(folder), load(apart)
    assert found.files.data == (apart / "weights",)
    assert found.compiled is not None
    assert found.weight_bytes == pytest.approx(together.weight_bytes, rel=0.1)
    assert found.digest != together.digest
    audio = [read_pcm(SPEECH, 16_000)[:40_000]]
    assert log_probs_of(found, audio)[0].tobytes() == log_probs_of(together, audio)[0].tobytes()
    network = PublishedNetwork.read(found.files)
    weight = max((linear.weight for linear in network.compiled.linears), key=lambda each: each.size)
    assert not weight.flags.owndata
    with (apart / "weights").open("r+b") as file:  # the digest covers the weights
        file.write(b"\1")
    assert load(apart).digest != found.digest


@pytest.mark.parametrize(
    ("location", "size", "reason"),
    [
        ("nowhere", None, "model.onnx needs the file nowhere next to it, which has its weights"),
        ("../weights", None, "model.onnx: weights at '../weights', which is not in the folder of the graph"),
        ("weights", 0.5, "weights does not have the .* bytes of the weights"),
    ],
)
def test_weights_that_are_not_there_are_named(
    location: str, size: float | None, reason: str, folder: Path, tmp_path: Path
) -> None:
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=1_024)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    if size is not None:
        content = (tmp_path / "weights").read_bytes()
        (tmp_path / "weights").write_bytes(content[: round(size * len(content))])
    find: Callable[[Path], object] = external_files if size is None else OnnxFile.read
    with pytest.raises(PublishedModelError, match=reason):
        find(tmp_path / "model.onnx")


def test_a_file_that_is_cut_off_has_no_other_files(folder: Path, tmp_path: Path) -> None:
    content = (folder / "model.onnx").read_bytes()
    for size in (0, 1, 7, len(content) // 2):
        (tmp_path / "model.onnx").write_bytes(content[:size])
        assert external_files(tmp_path / "model.onnx") == ()
