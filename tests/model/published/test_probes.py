"""Properties of the probe models: sherpa-onnx decodes each kind, states matter, rows do not, values stay finite."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.networks.probes import KINDS, fastconformer, make_probe, zipformer
from tests.support.networks.probes.calibration import windows_of
from tests.support.networks.probes.graph import Graph
from tests.support.networks.probes.reference import reference_tokens
from tests.support.networks.probes.running import open_session, run_windows, zero_states
from tests.support.networks.probes.transducers import histories, scores

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
VARIANTS = {
    "whisper": ("zipformer2-ctc", {"feature": "whisper"}),
    "zipformer-chunk-32": ("zipformer2-ctc", {"window": 77, "shift": 64, "tokens": "byte-bpe"}),
    "quantized": ("zipformer2-ctc", {"quantized": True, "suffix": "-epoch-99-avg-1-chunk-16-left-128"}),
    "nemo-480": ("nemo-ctc", {"window": 65, "shift": 56, "tokens": "bytes"}),
    "nemo-1040": ("nemo-ctc", {"window": 121, "shift": 112, "tokens": "characters", "vocabulary": 30}),
    "one-symbol-context": ("zipformer2-transducer", {"context_size": 1, "tokens": "chinese"}),
    "two-lstm-layers": ("nemo-transducer", {"pred_rnn_layers": 2, "pred_hidden": 24}),
    "zipformer-exported": ("zipformer2-ctc", {"size": "exported"}),
    "zipformer-exported-32": ("zipformer2-ctc", {"size": "exported", "window": 77, "shift": 64}),
    "nemo-exported": ("nemo-ctc", {"size": "exported"}),
    "nemo-exported-1040": ("nemo-ctc", {"size": "exported", "window": 121, "shift": 112}),
}
VARIANTS |= {kind: (kind, {}) for kind in KINDS}
EXPORTED = ["zipformer-exported", "zipformer-exported-32", "nemo-exported", "nemo-exported-1040"]
BATCHED = [kind for kind in KINDS if kind != "wenet-ctc"]


@cache
def speech(name="account_number"):
    pcm, rate = soundfile.read(SAMPLES / f"{name}.flac", dtype="int16")
    return pcm, rate


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a factory of probes by variant, each created once."""
    return cache(lambda name: make_probe(VARIANTS[name][0], tmp_path_factory.mktemp(name), **VARIANTS[name][1]))


@pytest.fixture(scope="module")
def recognized(made):
    """Return sherpa-onnx's result for a recording with a variant's probe."""
    return cache(lambda name, recording="account_number": reference_tokens(made(name), *speech(recording)))


def choices(probe, outputs):
    """Return the best symbol of each frame of row 0; for a transducer the best token after one history per frame."""
    if probe.kind == "nemo-transducer":
        outputs = [output.transpose(0, 2, 1) for output in outputs]
    frames = np.concatenate(outputs, axis=1)[0]
    if "ctc" in probe.kind:
        return frames.argmax(1)
    decoder, joiner = (open_session(probe.files[role]) for role in ("decoder", "joiner"))
    found = scores(joiner, frames, histories(decoder, probe.blank, probe.vocabulary))
    return np.delete(found, probe.blank, axis=1).argmax(1)


@pytest.mark.parametrize("name", VARIANTS)
def test_pieces_give_the_tokens_of_the_whole(made, recognized, name):
    whole = recognized(name)
    assert reference_tokens(made(name), *speech(), pieces=777) == whole
    unknown = len(whole.timestamps) - len(whole.tokens)
    assert unknown == 0 or made(name).kind == "nemo-transducer"  # its <unk> has no symbol but a time


@pytest.mark.parametrize("name", VARIANTS)
def test_speech_gives_various_tokens_and_blanks(recognized, name):
    tokens = [*recognized(name).tokens, *recognized(name, "demo").tokens]
    assert len(set(tokens)) >= 8
    assert 15 <= len(tokens) <= 14.3 * 12  # of 14.3 seconds
    assert max(tokens.count(token) for token in set(tokens)) <= len(tokens) / 2


@pytest.mark.parametrize("name", [*KINDS, *EXPORTED])
def test_each_state_affects_the_output(made, name):
    probe = made(name)
    session = open_session(probe.model)
    windows = windows_of(probe.kind, probe.window, probe.shift)
    usual = choices(probe, run_windows(session, probe.states, windows))
    for state, _ in probe.states:
        other = choices(probe, run_windows(session, probe.states, windows, zeroed=[state]))
        assert (other != usual).mean() > 0.02, state


@pytest.mark.parametrize("kind", BATCHED)
def test_rows_do_not_influence_one_another(made, kind):
    probe = made(kind)
    session = open_session(probe.model)
    windows = windows_of(kind, probe.window, probe.shift)[:24]
    alone = [run_windows(session, probe.states, part) for part in (windows[:8], windows[8:16], windows[16:])]
    rows = [np.concatenate(three) for three in zip(windows[:8], windows[8:16], windows[16:], strict=True)]
    for step, batch in enumerate(run_windows(session, probe.states, rows)):
        np.testing.assert_allclose(batch, np.concatenate([found[step] for found in alone]), atol=1e-4)


def test_rows_of_a_quantized_probe_influence_one_another(made):
    probe = made("quantized")
    session = open_session(probe.model)
    loud, quiet = windows_of(probe.kind, probe.window, probe.shift)[6:8]
    alone = run_windows(session, probe.states, [quiet])[0]
    together = run_windows(session, probe.states, [np.concatenate([3 * loud, quiet])])[0]
    assert np.abs(together[1] - alone[0]).max() > 1e-3
    assert probe.model.name == "model-epoch-99-avg-1-chunk-16-left-128.int8.onnx"


@pytest.mark.parametrize("kind", KINDS)
def test_a_minute_of_loud_noise_leaves_finite_states(made, kind):
    probe = made(kind)
    session = open_session(probe.model)
    windows = windows_of(kind, probe.window, probe.shift)
    seconds = sum(probe.shift for _ in windows) / (8000 if kind == "t-one-ctc" else 100)
    extreme = [window if window.dtype == np.int32 else 3 * window for window in windows]
    outputs = run_windows(session, probe.states, extreme * int(1 + 60 / seconds))
    assert np.isfinite(np.concatenate(outputs, axis=None)).all()
    assert len(np.unique(choices(probe, outputs[-20:]))) > 1


def test_the_history_of_symbols_changes_the_scores(made):
    probe = made("zipformer2-transducer")
    decoder, joiner = (open_session(probe.files[role]) for role in ("decoder", "joiner"))
    symbols = np.array([[-1, 0], [0, 0], [3, 4], [4, 3]], np.int64)
    output = decoder.run(None, {"y": symbols})[0]
    frame = np.random.default_rng(0).normal(size=(1, output.shape[1])).astype(np.float32)
    logits = joiner.run(None, {"encoder_out": np.repeat(frame, 4, 0), "decoder_out": output})[0]
    assert logits.shape == (4, probe.vocabulary)
    assert min(np.abs(logits[i] - logits[j]).max() for i in range(4) for j in range(i)) > 0.1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zipformer2-transducer"])
def test_medium_probes_hold_published_numbers_of_states(tmp_path, kind):
    probe = make_probe(kind, tmp_path, size="medium")
    size = sum(path.stat().st_size for path in probe.files.values())
    assert 1.5e6 < size < 6e6
    session = open_session(probe.model)
    states = zero_states(session, probe.states)
    expected = {"zipformer2": 6 * 16 + 2, "nemo": 3, "wenet": 2, "t": 1}[kind.split("-")[0]]
    assert len(states) == expected
    assert len(set(reference_tokens(probe, *speech("number")).tokens)) >= 3


def test_a_probe_is_its_seed(tmp_path):
    first, second = (make_probe("t-one-ctc", tmp_path / name) for name in "ab")
    other = make_probe("t-one-ctc", tmp_path / "c", seed=1)
    assert first.model.read_bytes() == second.model.read_bytes()
    assert other.model.read_bytes() != first.model.read_bytes()


def test_tokens_of_bytes_spell_text(made, recognized):
    """Every byte has its own symbol, and icefall's letters are those of sherpa-onnx."""
    probe = made("nemo-480")
    assert {f"<0x{byte:02X}>" for byte in range(256)} < set(probe.symbols)
    spelled = recognized("zipformer-chunk-32")
    assert "".join(spelled.tokens) != spelled.text
    assert any(ord(letter) > 0x4000 for letter in spelled.text)


def test_a_frame_of_the_nemo_transducer_may_give_several_symbols(recognized):
    times = recognized("two-lstm-layers", "demo").timestamps
    assert len(set(times)) < len(times)


def test_large_probes_hold_published_states_and_tens_of_millions_of_weights(tmp_path):
    probe = make_probe("zipformer2-ctc", tmp_path, size="large")
    assert 20e6 < probe.model.stat().st_size / 4 < 60e6
    states = zero_states(open_session(probe.model), probe.states)
    assert states["cached_key_15"].shape == (64, 1, 128)
    assert states["cached_nonlin_attn_7"].shape == (1, 1, 16, 384)
    assert states["cached_conv1_0"].shape == (1, 192, 15)
    assert states["processed_lens"].dtype == np.int64


@pytest.mark.parametrize(
    ("spec", "write", "millions", "nodes"),
    [
        (zipformer.Zipformer(**zipformer.SIZES["exported-22m"]), zipformer.write_ctc, 22.5, 3_840),
        (fastconformer.FastConformer(**fastconformer.SIZES["exported-26m"]), fastconformer.write_ctc, 26.3, 2_057),
    ],
    ids=["zipformer-22m", "fastconformer-26m"],
)
def test_exported_probes_have_the_numbers_of_weights_and_nodes_of_released_models(spec, write, millions, nodes):
    graph = Graph("probe", 0)
    write(graph, spec, 500)
    tables = (2 * spec.positions - 1) * (
        spec.hidden if isinstance(spec, fastconformer.FastConformer) else spec.position_size
    )
    weights = sum(array.size for array in graph.initializers.values()) - tables
    assert weights / 1e6 == pytest.approx(millions, rel=0.01)
    assert len(graph.nodes) == pytest.approx(nodes, rel=0.02)
