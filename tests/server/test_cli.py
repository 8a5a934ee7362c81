"""The command line: fast help, no heavy imports in clients, exit codes, defaults in help texts."""

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from model.acoustic import load_model
from model.evaluation import ceiling
from model.evaluation.ceiling import SLOW_NS
from model.int8_model import Int8Model
from model.torch_model import TorchModel
from model.torch_network.checkpoint import save_network
from server.cli import app
from server.settings import Settings
from tests.support.audio.speech import SAMPLES
from tests.support.needs import need_precision
from tests.support.networks.quantized_networks import random_quantized
from tests.support.servers.spelling import silence, spell
from tests.support.servers.wavering import WaveringDecoder

runner = CliRunner()


def run(*arguments, code=""):
    """Run the command in a separate process; `code` runs after it."""
    program = f"import sys\nfrom server.cli import app\napp({list(arguments)!r}, standalone_mode=False)\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def command(*arguments):
    """Run the command as a user does."""
    program = [sys.executable, "-m", "server.cli", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_help_is_fast_and_imports_nothing_heavy():
    start = time.perf_counter()
    done = run("--help", code="assert not {'torch', 'numpy', 'fastapi'} & set(sys.modules), 'heavy imports'")
    assert done.returncode == 0, done.stderr
    assert "transcribe" in done.stdout
    assert time.perf_counter() - start < 5  # generous for slow CI machines; `time tutti --help` takes 0.4 s


TRIES = 3  # of a timing that other processes may disturb
COMMANDS = [
    *(
        ["serve"],
        ["transcribe"],
        ["listen"],
        ["loadtest"],
        ["demo"],
        ["train"],
        ["quantize"],
        ["synthesize"],
        ["ceiling"],
        ["engine", "restart"],
        ["evaluate"],
    ),
    *(
        ["calibrate"],
        ["plan"],
        ["doctor"],
        ["drain"],
        ["usage"],
        ["replay"],
        ["lm", "train"],
        ["lm", "prune"],
        ["lm", "perplexity"],
        ["lm", "tune"],
    ),
    *(["model", "check"], ["model", "fetch"], ["model", "list"], ["model", "load"], ["model", "unload"], ["export"]),
    *(["keys", "new"], ["keys", "hash"], ["keys", "receipt"], ["keys", "resume"]),
]
IN_WORDS = {  # defaults that help texts describe in words
    "model": {"the shipped model", "English, and Mandarin on demand"},
    "lm": {"the shipped one"},
    "models_file": {"none"},
    "vosk_port": {"none"},
    "metrics_port": {"none"},
    "grammars": {"none"},
    "threads": {"all cores but one", "by cores and model"},
    "turn_model": {"none"},
    "written_forms": {"none"},
    "unload_idle_minutes": {"never"},
}
OWN_DEFAULTS = {  # options with the name of a setting but another default
    ("plan", "models"): "1",  # the number of models, and of front ends, of a simulated replica
    ("plan", "front_ends"): "0",
    ("evaluate", "decoder"): "as `tutti serve`",
    ("lm tune", "threads"): "2",
}


def named_defaults(command):
    """Yield (option, default) for each `Default: X.` or `[default: X]` in the command's help."""
    shown = runner.invoke(app, [*command, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"})
    assert shown.exit_code == 0, shown.output
    for row in re.findall(r"^│ +--([a-z-]+) +(.*?) *│$", shown.stdout, re.MULTILINE):
        option, text = row[0].replace("-", "_"), re.sub(r" *\[(required|env var: \w+)\]", "", row[1])
        yield from ((option, found) for found in re.findall(r"\[default: ([^\]]*)\]", text))
        yield from ((option, found) for found in re.findall(r"Default: (.*?)\.(?= *\[|$)", text))


def test_every_command_is_in_the_list_whose_defaults_are_checked():
    groups = typer.main.get_command(app).commands
    found = [
        [name, *sub] for name, one in groups.items() for sub in ([[s] for s in getattr(one, "commands", {})] or [[]])
    ]
    assert sorted(found) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_defaults_in_help_texts_match_the_settings(command):
    for option, shown in named_defaults(command):
        if option not in Settings.model_fields:
            continue
        default = Settings.model_fields[option].default
        own = OWN_DEFAULTS.get((" ".join(command), option))
        if own is not None:
            assert shown == own
        elif isinstance(default, float):
            assert float(shown) == default, option
        elif shown in IN_WORDS.get(option, ()):
            assert not default, f"--{option} has a default: {default}"
        else:
            assert shown == str(default), option


def test_help_of_serve_shows_the_defaults_of_the_settings():
    """Rich would treat defaults in square brackets as markup and drop them."""
    defaults = dict(named_defaults(["serve"]))
    assert defaults.items() >= {"host": "127.0.0.1", "port": "8080", "policy": "eager", "max_batch": "128"}.items()
    assert defaults.items() >= {"latency_budget_ms": "100", "device": "auto"}.items()
    assert defaults["model"] == "English, and Mandarin on demand"


def test_version_is_that_of_the_distribution():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("tutti 0.")


def test_transcribing_through_a_server_never_imports_torch(live_server, tmp_path):
    import soundfile

    path = tmp_path / "hello.wav"
    soundfile.write(path, spell("hello there"), 16_000)
    server = live_server()
    done = run(
        "transcribe", str(path), "--url", f"ws://{server.host}", "--json", code="assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["text"] == "hello there"


def test_key_terms_and_formatting_are_sent_to_the_server(live_server, tmp_path):
    import soundfile

    path = tmp_path / "hello.wav"
    soundfile.write(path, np.concatenate([spell("hello there "), silence(1.5)]), 16_000)
    server = live_server(decoder=WaveringDecoder())
    where = ["transcribe", str(path), "--json", "--url", f"ws://{server.host}"]
    result = runner.invoke(app, [*where, "--keyterm", "foo bar", "--keyterm", "baz", "--smart-format"])
    assert result.exit_code == 0, result.output
    text = json.loads(result.stdout.splitlines()[-1])["text"]
    assert text.startswith("Hello+foo bar+baz")
    kept = runner.invoke(app, [*where[:-1], f"ws://{server.host}?keyterm=foo&smart_format=true"])
    assert json.loads(kept.stdout.splitlines()[-1])["text"].startswith("Hello+foo"), "the address keeps its query"
    many = [part for i in range(201) for part in ("--keyterm", f"t{i}")]
    refused = runner.invoke(app, [*where, *many])
    assert refused.exit_code == 1
    assert "keyterm" in json.loads(refused.stdout.splitlines()[-1])["error"]


def test_key_terms_and_decoder_options_apply_without_a_server(tmp_path):
    import soundfile

    path = tmp_path / "silence.wav"
    soundfile.write(path, silence(0.5), 16_000)
    options = ["transcribe", str(path), "--json", "--decoder", "beam", "--beams", "2", "--lm", "off"]
    result = runner.invoke(app, [*options, "--keyterm", "foo"])
    assert result.exit_code == 0, result.output
    refused = runner.invoke(app, [*options, "--keyterm", "word " * 30])
    assert refused.exit_code == 1
    assert "keyterm" in refused.output
    useless = runner.invoke(app, ["transcribe", str(path), "--json", "--decoder", "greedy", "--keyterm", "foo"])
    assert useless.exit_code == 1
    assert "beam decoder" in useless.output


def test_a_missing_file_is_a_usage_error():
    result = runner.invoke(app, ["transcribe", "absent.wav"])
    assert result.exit_code == 2
    assert "absent.wav" in result.output


def test_an_unreachable_server_is_reported_with_exit_status_1():
    done = command(
        "transcribe", str(SAMPLES.parent / "yes.flac"), "--url", "ws://127.0.0.1:9", "--json", "--retry", "0"
    )
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--policy", "greedy"], "--policy"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--decoder", "flashlight"], "--decoder"),
        (["serve", "--beams", "1025"], "--beams"),
        (["loadtest", "--streams", "ten"], "--streams"),
    ],
)
def test_a_bad_option_is_reported_with_exit_status_2(arguments, named):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert named in result.output


def test_a_missing_model_is_reported_with_exit_status_1():
    done = command("serve", "--port", "0", "--model", "absent.safetensors")
    assert done.returncode == 1
    assert "absent.safetensors" in done.stderr


def test_an_unsupported_precision_exits_with_status_1():
    done = command("serve", "--port", "0", "--device", "cpu", "--precision", "fp16")
    assert done.returncode == 1
    assert "fp16 needs a GPU" in done.stderr


ALL_IN_TURN = """
import json, sys
from server.cli import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as error:
        print(arguments[0], "exits with", error.code)
"""


AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


def errors_of_every_command(precision, *model, out, environment):
    """Return the error of all commands with --precision; each must exit with 1 and print the same single line."""
    recording = str(SAMPLES.parent / "yes.flac")
    commands = [
        ["serve", "--port", "0"],
        ["transcribe", recording],
        ["evaluate", "--manifest", str(SAMPLES)],
        ["ceiling"],
        ["calibrate", "--out", out],
        ["lm", "tune", "--manifest", str(SAMPLES), "--out", out],
    ]
    asked = json.dumps([[*arguments, "--precision", precision, *model] for arguments in commands])
    program = [sys.executable, "-c", ALL_IN_TURN, asked]
    environment = os.environ | environment
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.stdout.splitlines() == [f"{arguments[0]} exits with 1" for arguments in commands], done.stderr
    errors = [line for line in done.stderr.splitlines() if "compiling for this processor" not in line]
    assert errors == [errors[0]] * len(commands)
    return errors[0]


def test_every_command_rejects_a_precision_without_processor_support_in_one_line(tmp_path):
    """bf16 needs AVX-512; torch and oneDNN are set to ignore it."""
    error = errors_of_every_command("bf16", out=str(tmp_path / "out.json"), environment=AVX2)
    assert error.startswith("tutti: precision bf16 needs a processor with")
    assert error.endswith("use --precision int8, fp32 or auto")


def test_every_command_rejects_int8_without_8_bit_weights_in_one_line(tmp_path):
    save_network(TorchModel.random().network, tmp_path / "float.safetensors")
    model = ("--model", str(tmp_path / "float.safetensors"))
    error = errors_of_every_command("int8", *model, out=str(tmp_path / "out.json"), environment={})
    assert error.startswith("tutti: ")
    assert error.endswith(
        "float.safetensors has no 8-bit weights: create a checkpoint with them by `tutti quantize`, "
        "or use --precision auto"
    )


def test_a_missing_language_model_is_reported_with_exit_status_1():
    done = command("serve", "--port", "0", "--lm", "absent.arpa")
    assert done.returncode == 1
    assert "absent.arpa" in done.stderr


def test_evaluate_prints_one_json_document_as_its_last_line():
    result = runner.invoke(app, ["evaluate", "--manifest", str(SAMPLES), "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert set(figures) >= {"wer", "cer", "by_source", "precision"}
    assert ("log_prob_difference_to_fp32" in figures) == (figures["precision"] != "fp32")
    assert figures["by_source"]["samples"]["utterances"] == len(SAMPLES.read_text().splitlines())
    assert figures["precision"] == load_model().precision


def test_a_missing_manifest_is_reported_with_exit_status_1():
    result = runner.invoke(app, ["evaluate", "--manifest", "absent.jsonl"])
    assert result.exit_code == 1
    assert "absent.jsonl" in result.output


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_ceiling_measures_every_precision(precision):
    need_precision(precision)
    model = Int8Model(random_quantized(), "x") if precision == "int8" else TorchModel.random(precision=precision)
    figures = ceiling.measure(model, (1, 2))
    assert figures.precision == precision
    assert min(figures.product_gflops, figures.step_gflops) > 0


def test_ceiling_counts_two_operations_per_weight_and_frame():
    """The first convolution has twice as many frames."""
    model = TorchModel.random()
    weights = {name: each for name, each in model.network.state_dict().items() if name.endswith(".weight")}
    sizes = {name: each.numel() for name, each in weights.items() if each.ndim == 2 and "lookahead" not in name}
    per_frame = sum(sizes.values()) + sizes["conv0.product.weight"]
    assert ceiling.step_operations(model.config) == 2 * model.config.frames_per_step * per_frame


def test_ceiling_prints_one_json_document():
    gains = []
    while not any(gains) and len(gains) < TRIES:  # other processes may slow single batches
        result = runner.invoke(app, ["ceiling", "--json"])
        assert result.exit_code == 0, result.output
        figures = json.loads(result.stdout.splitlines()[-1])
        assert 1.0 < figures["read_ns"] < 10_000.0
        assert figures["in_caches"] == (figures["read_ns"] <= SLOW_NS)
        gains.append(min(ms / int(rows) for rows, ms in figures["step_ms"].items()) < 0.8 * figures["step_ms"]["1"])
    assert any(gains), "batching does not help"


@pytest.mark.parametrize("words", [["train", "--manifest", "a.jsonl"], ["lm", "tune"], ["plan", "--help"]])
def test_a_command_of_the_lab_says_how_to_install_it(words: list[str]) -> None:
    alone = "import importlib.metadata as m, sys; m.entry_points = lambda **_: (); from server.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", alone, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tutti: {words[0]}: not installed; pip install 'tutti-asr[training]'")
