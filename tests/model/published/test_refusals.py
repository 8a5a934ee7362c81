"""Files that cannot be served give one message that names the file and the error."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache

import pytest

from model.acoustic import load_model
from model.errors import PublishedModelError
from model.published.contracts import KINDS as CTC
from tests.support.needs import need_package
from tests.support.networks.probes import KINDS, make_probe

CTC_KINDS = [kind for kind in KINDS if kind.endswith("ctc")]
KEYS = {kind: {"model": CTC[kind][0]} for kind in CTC_KINDS}
KEYS["zipformer2-transducer"] = {
    "encoder": (*CTC["zipformer2-ctc"][0], "model_type"),
    "decoder": ("context_size", "vocab_size"),
    "joiner": ("joiner_dim",),
}
KEYS["nemo-transducer"] = {"encoder": (*CTC["nemo-ctc"][0], "pred_rnn_layers", "pred_hidden")}
KEYS["nemo-buffered-transducer"] = {
    "encoder": (
        *(f"{part}_{frames}_frames" for part in ("left", "chunk", "right") for frames in ("encoder", "feature")),
        *("subsampling_factor", "vocab_size", "pred_rnn_layers", "pred_hidden"),
    )
}
EACH_KEY = [(kind, role, key) for kind, roles in KEYS.items() for role, keys in roles.items() for key in keys]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a factory of probes by kind, each created once."""
    return cache(lambda kind: make_probe(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture
def folder(made, tmp_path):
    """Return a function that copies a kind's probe to a folder that a test may damage."""
    return lambda kind: shutil.copytree(made(kind).folder, tmp_path / kind)


def refusal(path, **options):
    """Return the message with which a model is rejected."""
    with pytest.raises(PublishedModelError) as refused:
        load_model(path, **options)
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def change(path, **values):
    """Set metadata of a graph; None removes a key."""
    onnx = need_package("onnx")
    model = onnx.load(path)
    kept = {entry.key: entry.value for entry in model.metadata_props} | values
    del model.metadata_props[:]
    for key, value in kept.items():
        if value is not None:
            model.metadata_props.add(key=key, value=str(value))
    onnx.save(model, path)


def other_graph(path):
    """Write an ONNX file that is not a speech model."""
    onnx = need_package("onnx")
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "other", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_undamaged_copy_loads(folder, kind):
    assert load_model(folder(kind)).config.architecture == kind


@pytest.mark.parametrize(("kind", "role", "key"), EACH_KEY)
def test_a_key_of_the_metadata_that_is_missing_is_named(folder, kind, role, key):
    path = folder(kind) / f"{role}.onnx"
    change(path, **{key: None})
    assert refusal(path.parent) == f"{role}.onnx has no {key!r} in its metadata"


@pytest.mark.parametrize(
    ("kind", "role", "key"), [each for each in EACH_KEY if each[2] != "model_type"][::4], ids=lambda each: each
)
def test_a_key_that_is_not_a_number_is_named_with_its_value(folder, kind, role, key):
    path = folder(kind) / f"{role}.onnx"
    change(path, **{key: "many"})
    assert refusal(path.parent) == f"{role}.onnx: {key!r} in the metadata is 'many', not a number"


@pytest.mark.parametrize(("key", "value"), [("T", 31), ("decode_chunk_len", 0), ("left_context_len", "1,2,3")])
def test_numbers_out_of_range_are_named(folder, key, value):
    path = folder("zipformer2-ctc") / "model.onnx"
    change(path, **{key: value})
    said = refusal(path.parent)
    assert said.startswith("model.onnx")
    assert str(value) in said or key in said


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nemo-buffered-transducer"])
def test_sizes_that_differ_from_the_graph_are_reported_for_an_input(folder, kind):
    role = next(iter(KEYS[kind]))
    path = folder(kind) / f"{role}.onnx"
    key = {"z": "left_context_len", "n": "cache_last_channel_dim2", "t": "state_dim"}[kind[0]]
    numbers = [str(2 * int(number)) for number in load_model(path.parent).graph.metadata[key].split(",")]
    change(path, **{key: ",".join(numbers)})
    said = refusal(path.parent)
    assert said.startswith(f"{role}.onnx: input ")
    assert "by its metadata it should" in said


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_do_not_fit_are_named(folder, kind):
    path = folder(kind) / "tokens.txt"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    blank = next(line for line in lines if line.startswith("<bl"))
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    said = refusal(path.parent)
    writes = f"has {len(lines) - 1} symbols, but the model has {len(lines)} outputs"
    assert said == f"{path} " + (
        "has no blank symbol: expected one of <blk>, <eps>, <blank>" if blank == lines[-1] else writes
    )
    path.write_text("".join([*lines, f"twice {len(lines) - 1}\n"]), encoding="utf-8")
    assert refusal(path.parent) == f"{path}, line {len(lines) + 1}: number {len(lines) - 1} was already used"
    path.write_text("".join(line.replace("<bl", "<no-bl") for line in lines), encoding="utf-8")
    assert refusal(path.parent) == f"{path} has no blank symbol: expected one of <blk>, <eps>, <blank>"
    path.unlink()
    assert refusal(path.parent) == f"{path.parent} has no tokens.txt, which lists the model's symbols"


@pytest.mark.parametrize(("kind", "role"), [("t-one-ctc", "model"), ("zipformer2-transducer", "joiner")])
def test_a_truncated_file_is_not_a_graph(folder, kind, role):
    path = folder(kind) / f"{role}.onnx"
    path.write_bytes(path.read_bytes()[:2_000])
    assert refusal(path.parent).startswith(f"ONNX Runtime cannot read {path}: ")


def test_another_onnx_file_is_not_one_of_the_kinds(folder):
    path = folder("t-one-ctc") / "model.onnx"
    other_graph(path)
    assert refusal(path).startswith("model.onnx is not of a supported kind (zipformer2-ctc, nemo-ctc, ")


def test_a_model_of_wenet_is_refused_by_name_with_the_reason(folder):
    path = folder("t-one-ctc") / "model.onnx"
    keys = {"head": "4", "num_blocks": "12", "output_size": "256", "cnn_module_kernel": "15", "right_context": "6"}
    change(path, frame_length_ms=None, **keys, model_type="wenet_ctc")
    said = refusal(path)
    assert said.startswith("model.onnx: models of WeNet are not served, because their graphs take one stream at a time")
    assert "serve a model of another kind" in said


@pytest.mark.parametrize("kind", ["zipformer2-transducer", "nemo-transducer"])
@pytest.mark.parametrize("role", ["encoder", "decoder", "joiner"])
def test_a_part_of_a_transducer_that_is_another_graph_or_missing_is_named(folder, kind, role):
    path = folder(kind) / f"{role}.onnx"
    other_graph(path)
    if role == "joiner":
        change(path, joiner_dim=3)
    assert refusal(path.parent).startswith(f"{role}.onnx ")
    path.unlink()
    assert refusal(path.parent) == f"{path.parent} has an incomplete transducer: no {role} graph"


def test_unsupported_features_are_rejected(folder):
    nemo, zipformer = folder("nemo-ctc"), folder("zipformer2-ctc")
    change(nemo / "model.onnx", normalize_type="per_feature")
    assert refusal(nemo).startswith("model.onnx: features normalized by 'per_feature' need the whole utterance")
    change(zipformer / "model.onnx", feature="mfcc")
    assert refusal(zipformer) == "model.onnx: features of kind 'mfcc' are not supported"
    change(nemo / "model.onnx", normalize_type="", feat_dim=161)
    assert refusal(nemo) == "model.onnx takes features of 161 mel bins; 40 to 160 are supported"
    change(nemo / "model.onnx", feat_dim=128)
    assert refusal(nemo).startswith("model.onnx: input 'audio_signal' is tensor(float) ['N', 80, 'T']")


def test_an_encoder_of_another_kind_is_named_by_its_kind(folder):
    path = folder("zipformer2-transducer") / "encoder.onnx"
    change(path, model_type="conformer", **dict.fromkeys(CTC["zipformer2-ctc"][0]))
    said = "encoder.onnx: transducers of kind 'conformer' are not supported, only those of zipformer2 and NeMo"
    assert refusal(path.parent) == said


def test_with_two_graphs_the_path_of_one_is_required(folder):
    path = folder("t-one-ctc") / "model.onnx"
    shutil.copy(path, path.with_name("streaming.onnx"))
    assert refusal(path.parent) == (
        f"{path.parent} has several graphs (model.onnx, streaming.onnx); give the path of one of them"
    )
    assert load_model(path).config.architecture == "t-one-ctc"


def test_a_given_encoder_selects_the_decoder_and_joiner_with_the_same_suffix(folder):
    whole = folder("zipformer2-transducer")
    for path in list(whole.glob("*.onnx")):
        shutil.copy(path, path.with_stem(f"{path.stem}-left-64"))
        path.rename(path.with_stem(f"{path.stem}-left-128"))
    assert "has several graphs (encoder-left-128.onnx, encoder-left-64.onnx)" in refusal(whole)
    chosen = load_model(whole / "encoder-left-64.onnx").files.graphs
    assert {path.name for path in chosen.values()} == {f"{role}-left-64.onnx" for role in chosen}


@pytest.mark.parametrize("kind", ["t-one-ctc", "zipformer2-transducer"])
def test_a_precision_without_its_file_is_rejected(folder, kind):
    role = next(iter(KEYS[kind]))
    said = f"there is no {role}.int8.onnx next to {role}.onnx; use --precision auto"
    assert refusal(folder(kind), precision="int8") == said


def test_a_folder_without_graphs_and_a_missing_path_are_named(tmp_path):
    assert refusal(tmp_path).startswith(f"{tmp_path} has no .onnx file")
    assert refusal(tmp_path / "model.onnx").startswith(
        f"{tmp_path / 'model.onnx'} does not exist; a published model is"
    )


def test_serving_prints_the_message_and_ends_before_it_opens_a_port(folder):
    path = folder("t-one-ctc") / "model.onnx"
    change(path, state_dim=None)
    arguments = [sys.executable, "-m", "server.cli", "serve", "--model", str(path.parent), "--port", "0"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "tutti: model.onnx has no 'state_dim' in its metadata"
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stderr + done.stdout
