"""Which models run a compiled step: those whose step gives what the graph gives, as a kept verdict says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from model.acoustic import log_probs_of
from model.errors import PublishedModelError
from model.published.compiled import compiling
from model.published.compiled.fastconformer.network import FastConformer
from model.published.metadata import Graph
from model.published.onnx_graph import OnnxGraph
from model.published.published_model import PublishedModel
from model.published.rows import check_rows
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


def test_weights_in_a_file_of_their_own_and_large_graphs_are_left_to_the_runtime(
    folder: Path, places: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiling, "LARGEST_BYTES", 1_000)
    assert load(folder).verdict == compiling.Verdict(False, "it is larger than 1 GiB")
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "tokens.txt").write_bytes((folder / "tokens.txt").read_bytes())
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, apart / "model.onnx", save_as_external_data=True, location="weights", size_threshold=1_024)
    monkeypatch.undo()
    assert load(apart).verdict == compiling.Verdict(False, "its weights are in a file of their own")
