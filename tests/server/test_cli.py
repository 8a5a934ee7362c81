"""The command line: fast help, no heavy imports in clients, exit codes, errors of one line that name their cause."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import typer
from structlog.testing import capture_logs
from typer.testing import CliRunner

from model.acoustic import load_model
from model.evaluation.ceiling import SLOW_NS
from server.cli import app
from server.configuration.variables import OPTIONS
from server.settings import Settings
from tests.support.audio.speech import SAMPLES
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.recognizers.wavering import WaveringDecoder

RECORDING = str(SAMPLES.parent / "yes.flac")
MANIFEST = ["--manifest", str(SAMPLES)]
TRIES = 3  # of a timing that other processes may disturb


def ran(*arguments: str, **variables: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env=variables)


def process(program: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    command = [sys.executable, *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def imported(*arguments: str, absent: str) -> str:
    """Run a command in a process that must not import these packages; return its output."""
    check = f"assert not set({absent.split()!r}) & set(sys.modules), 'heavy imports'"
    done = process(
        ["-c", f"import sys\nfrom server.cli import app\napp({arguments!r}, standalone_mode=False)\n{check}"]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def every_command() -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        yield from (((name, sub), one) for sub, one in inner.items())
        if not inner:
            yield (name,), command


COMMANDS = dict(every_command())


# Help


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    start = os.times().children_user
    assert "transcribe" in imported("--help", absent="torch numpy fastapi pydantic")
    assert os.times().children_user - start < 3  # of processor time, on slow machines; here it takes 0.4 s


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_help_has_its_defaults_filled_in_also_with_unknown_variables_set(name: tuple[str, ...]) -> None:
    shown = ran(*name, "--help", TUTTI_MAX_STREAM="3", COLUMNS="400")
    assert shown.exit_code == 0, shown.output
    assert "{default" not in shown.stdout
    for option, default in re.findall(r"--([a-z-]+) .* Default: ([\w.]+)\. ", shown.stdout):
        setting = Settings.model_fields.get(option.replace("-", "_"))
        if setting is not None and setting.default is not None and name[0] not in ("plan", "evaluate", "lm"):
            assert default == str(setting.default) or (option, default) == ("threads", "all"), option


def test_serve_has_an_option_for_each_setting_of_the_list() -> None:
    serve, doctor = ({option.name for option in COMMANDS[name,].params} for name in ("serve", "doctor"))
    assert serve - {"help"} == set(OPTIONS) <= set(Settings.model_fields)
    assert doctor == serve | {"as_json"}
    shown = ran("serve", "--help", COLUMNS="400").stdout
    assert re.search(r"--policy +eager\|deadline\|single +.* Default: eager\.", shown)
    assert re.search(r"--latency-budget-ms .* Default: 100\.", shown)


def test_version_is_that_of_the_distribution() -> None:
    assert ran("--version").stdout.startswith("tutti 0.")
    assert "Usage" in ran().output


@pytest.mark.parametrize("words", [["train", "--manifest", "a.jsonl"], ["lm", "tune"], ["plan", "--help"]])
def test_a_command_of_the_lab_says_how_to_install_it(words: list[str]) -> None:
    alone = "import importlib.metadata as m, sys; m.entry_points = lambda **_: (); from server.cli import main; main()"
    done = process(["-c", alone, *words])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tutti: {words[0]}: not installed; pip install 'tutti-asr[training]'")


@pytest.mark.parametrize("module", ["typer", "pydantic_settings"])
def test_an_interrupt_during_imports_has_no_traceback(module: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["tutti"] == "server.command:main"
    interrupting = f"""
import sys
from server.command import main
class Interrupt:
    def find_spec(name, *_):
        if name == {module!r}: raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
main()"""
    done = process(["-c", interrupting, "doctor"])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# Work


def test_transcribing_through_a_server_never_imports_torch(live_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "hello.wav"
    soundfile.write(path, spell("hello there"), 16_000)
    output = imported("transcribe", str(path), "--url", f"ws://{live_server().host}", "--json", absent="torch")
    assert json.loads(output.splitlines()[-1])["text"] == "hello there"


def test_key_terms_and_formatting_are_sent_to_the_server(live_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "hello.wav"
    soundfile.write(path, np.concatenate([spell("hello there "), silence(1.5)]), 16_000)
    url = f"ws://{live_server(decoder=WaveringDecoder()).host}"

    @capture_logs()  # the server's own lines, which are in this process
    def last(url: str, *options: str) -> Any:
        return json.loads(ran("transcribe", str(path), "--json", "--url", url, *options).stdout.splitlines()[-1])

    both = last(url, "--keyterm", "foo bar", "--keyterm", "baz", "--smart-format")
    assert both["text"].startswith("Hello+foo bar+baz")
    assert last(f"{url}?keyterm=foo&smart_format=true")["text"].startswith("Hello+foo"), "the address keeps its query"
    assert "keyterm" in last(url, *(part for i in range(201) for part in ("--keyterm", f"t{i}")))["error"]


def test_key_terms_and_decoder_options_apply_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, silence(0.5), 16_000)
    options = ["transcribe", str(path), "--json", "--decoder", "beam", "--beams", "2", "--lm", "off"]
    assert ran(*options, "--keyterm", "foo").exit_code == 0
    assert "keyterm" in one_line(ran(*options, "--keyterm", "word " * 30), 1)
    assert "beam decoder" in one_line(ran("transcribe", str(path), "--decoder", "greedy", "--keyterm", "foo"), 1)


def test_an_unreachable_server_is_reported_with_exit_status_1() -> None:
    done = ran("transcribe", RECORDING, "--url", "ws://127.0.0.1:9", "--json", "--retry", "0")
    assert done.exit_code == 1
    assert "127.0.0.1:9" in done.stdout


def test_evaluate_prints_one_json_document_as_its_last_line() -> None:
    figures = json.loads(ran("evaluate", *MANIFEST, "--json").stdout.splitlines()[-1])
    assert set(figures) >= {"wer", "cer", "by_source", "precision"}
    assert "log_prob_difference_to_fp32" not in figures, "the default network has no floats"
    of_gru = json.loads(ran("evaluate", *MANIFEST, "--json", "--model", "gru").stdout.splitlines()[-1])
    assert ("log_prob_difference_to_fp32" in of_gru) == (of_gru["precision"] != "fp32")
    assert figures["by_source"]["samples"]["utterances"] == len(SAMPLES.read_text().splitlines())
    assert figures["precision"] == load_model().precision


def test_ceiling_prints_one_json_document() -> None:
    gains: list[bool] = []
    while not any(gains) and len(gains) < TRIES:  # other processes may slow single batches
        figures = json.loads(ran("ceiling", "--json", "--model", "gru").stdout.splitlines()[-1])
        assert 1.0 < figures["read_ns"] < 10_000.0
        assert figures["in_caches"] == (figures["read_ns"] <= SLOW_NS)
        gains.append(min(ms / int(rows) for rows, ms in figures["step_ms"].items()) < 0.8 * figures["step_ms"]["1"])
    assert any(gains), "batching does not help"


def one_line(result: Any, status: int = 2) -> str:
    """Return a command's error, which must be a single line."""
    assert result.exit_code == status, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert not result.stdout
    lines = [line for line in result.stderr.splitlines() if "compiling for this processor" not in line]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tutti: ")
    return str(lines[0].removeprefix("tutti: "))


def names(error: str, named: str) -> bool:
    """Whether an error names an option, a variable or an argument, and not only as a part of another name."""
    return re.search(rf"(?<![\w-]){re.escape(named)}(?![\w-])", error) is not None


def bad_values(parameter: Any) -> Iterator[str]:
    """Yield values that are invalid for any option of this type."""
    kind = str(parameter.type_descriptor.annotation)
    yield ""
    if re.search(r"\b(int|float)\b", kind):
        yield from ("ten", "nan", "inf", "-inf")
    if parameter.type_descriptor.is_choice:
        yield "nonsense"
    if getattr(parameter, "min", None) is not None:
        yield "-1000000"


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_option_of_every_command_reports_a_bad_value_in_one_line(name: tuple[str, ...]) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option" and not parameter.is_flag:
            option = max(parameter.opts, key=len)
            for bad in bad_values(parameter):
                assert names(one_line(ran(*name, *required(COMMANDS[name], option), f"{option}={bad}")), option), bad


def required(command: Any, without: str = "") -> Iterator[str]:
    """Yield the required options and arguments of a command."""
    for parameter in command.params:
        if parameter.required and without not in parameter.opts:
            yield from (parameter.opts[0], "0") if parameter.param_type_name == "option" else ("a",)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_rejects_unknown_options_and_variables_in_one_line(name: tuple[str, ...]) -> None:
    error = one_line(ran(*name, "--no-such-option"))
    assert error.startswith("No such option: --no-such-option")
    assert error.endswith(f"; see `tutti {' '.join(name)} --help`")
    error = one_line(ran(*name, *required(COMMANDS[name]), TUTTI_MAX_STREAM="3"))
    assert error == "TUTTI_MAX_STREAM: not a setting; did you mean TUTTI_MAX_STREAMS?"
    if any(each.required for each in COMMANDS[name].params):
        assert re.match(r"Missing (option|argument) '", one_line(ran(*name)))


WRONG_USAGE = [  # arguments, and what the error names
    (["sreve"], "sreve"),
    (["serve", "now"], "now"),
    (["serve", "--port"], "--port"),
    (["serve", "--reproducible=yes"], "--reproducible"),
    (["serve", "--policy", "greedy"], "--policy"),
    (["serve", "--port", "70000"], "--port"),
    (["serve", "--beams", "1025"], "--beams"),
    (["serve", "--max-streams", "many"], "--max-streams"),
    (["doctor", "--precision", "fp8"], "--precision"),
    (["serve", "--model", "a=b", "--model", "c"], "--model"),
    (["serve", "--model", "a", "--models-file", "b"], "--models-file"),
    (["ceiling", "--device", "tpu"], "--device"),
    (["calibrate", "--precision", "fp8"], "--precision"),
    (["plan", "--policy", "greedy"], "--policy"),
    (["plan", "--calibration", "absent.json"], "--calibration"),
    (["plan", "--levels", "0"], "--levels"),
    (["plan", "--gpu"], "--gpu"),
    (["plan", "--levels", "9", "--streams", "9"], "--streams"),
    (["plan", "--cores", "8", "--streams", "9"], "--streams"),
    (["loadtest", "--streams", "ten"], "--streams"),
    (["evaluate", *MANIFEST, "--codec", "gsm"], "--codec"),
    (["evaluate", *MANIFEST, "--precision", "fp32,fp8"], "--precision"),
    (["evaluate", *MANIFEST, "--url", "foo://x"], "--url"),
    (["lm", "train", str(SAMPLES), "--out", "o.arpa", "--min-count", "2,1"], "--min-count"),
    (["lm", "train", str(SAMPLES), "--out", "o.arpa", "--mix", "half"], "--mix"),
    (["lm", "train", "absent:x", "--out", "o.arpa"], "TEXTS"),
    (["keys", "new", "--name", "streams=5"], "--name"),
    (["keys", "new", "--origin", "example.org"], "--origin"),
    (["transcribe", "absent.wav"], "absent.wav"),
    (["transcribe", RECORDING, "--json", "--format", "srt"], "--format"),
    (["transcribe", RECORDING, "--resumable"], "--resumable"),
    (["transcribe", RECORDING, "--finals", "wrong"], "fast, context, accurate"),
    (["listen", "--list-inputs", "--input", "0"], "--input"),
    (["evaluate", *MANIFEST, "--api-key", "k"], "--api-key"),
    (["evaluate", *MANIFEST, "--interim-stability", "high"], "--interim-stability"),
    (["evaluate", *MANIFEST, "--partials", "--interim-stability", "middle"], "low, high"),
    (["voice", "enroll", "anna", RECORDING, "--voices", ".", "--api-keys-file", "keys"], "--api-keys-file"),
    (["synthesize", "o", "--voice", "es"], "--voice"),
    (["synthesize", "o", "--texts", "t", "--voice", "es", "--neural"], "--voice"),
    (["synthesize", "o", "--texts", "t", "--mandarin", "m"], "--mandarin"),
    (["synthesize", "o", "--mandarin", "m", "--dev"], "--dev"),
    (["synthesize", "o", "--hours", "0"], "--hours"),
    (["plan", "--policy", "eager", "--latency-budget-ms", "50"], "--latency-budget-ms"),
    (["transcribe", RECORDING, "--url", "ws://127.0.0.1:9", "--api-key", "a b"], "--api-key"),
    (["model", "list", "--url", "ftp://x"], "--url"),
    (["drain", "--url", "http://127.0.0.1:x"], "--url"),
    (["drain", "--admin-key", "a\nb"], "--admin-key"),
]


def test_torchrun_starts_the_processes() -> None:
    ended = ran("train", "--manifest=m", "--out=o", "--processes=2", RANK="0", WORLD_SIZE="2")
    assert names(one_line(ended), "--processes")


@pytest.mark.parametrize(("arguments", "named"), WRONG_USAGE)
def test_wrong_usage_is_one_line_that_names_it(arguments: list[str], named: str) -> None:
    assert names(one_line(ran(*arguments)), named)


@pytest.mark.parametrize(
    ("arguments", "variable", "value"),
    [
        (["serve"], "TUTTI_PORT", "70000"),
        (["doctor"], "TUTTI_MAX_STREAMS", "many"),
        (["serve"], "TUTTI_MAX_STREAMS", "9" * 20),
        (["serve"], "TUTTI_THREADS", "1000000"),
        (["ceiling"], "TUTTI_THREADS", "1000000"),
        (["serve"], "TUTTI_MAX_UPLOADS", "9" * 20),
        (["serve"], "TUTTI_UNLOAD_IDLE_MINUTES", "1e-300"),
        (["doctor"], "TUTTI_MODEL", "en=a,b"),
        (["transcribe", RECORDING], "TUTTI_LATENCY_BUDGET_MS", "inf"),
        (["evaluate", *MANIFEST], "TUTTI_BEAMS", "0"),
        (["model", "check"], "TUTTI_VAD", "on"),
        (["ceiling"], "TUTTI_THREADS", "many"),
        (["plan"], "TUTTI_MAX_BATCH", "0"),
    ],
)
def test_a_bad_variable_is_named(arguments: list[str], variable: str, value: str) -> None:
    assert names(one_line(ran(*arguments, **{variable: value})), variable)


def test_each_bad_setting_is_on_a_line_of_its_own_without_its_value() -> None:
    secret = "[a-secret"
    result = ran("serve", "--port", "70000", TUTTI_PORT="80", TUTTI_RESUME_KEYS=secret, TUTTI_MODELS=secret)
    assert result.exit_code == 2
    assert sorted(result.stderr.splitlines()) == [
        "tutti: --port (TUTTI_PORT): Input should be less than or equal to 65535",
        "tutti: TUTTI_MODELS: is not JSON",
        "tutti: TUTTI_RESUME_KEYS: begins with [ but is not a JSON array",
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--models-file", "absent.toml"], "--models-file"),
        (["serve", "--written-forms", "absent"], "--written-forms"),
        (["keys", "new", "--file", "no/such/folder/keys"], "no/such/folder/keys"),
        (["evaluate", "--manifest", "absent.jsonl"], "absent.jsonl"),
        (["lm", "train", "absent.txt", "--out", "o.arpa"], "absent.txt"),
        (["lm", "perplexity", "absent.arpa", "absent.txt"], "absent.arpa"),
        (["ceiling", "--model", "absent.safetensors"], "absent.safetensors"),
        (["drain", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ],
)
def test_a_missing_file_or_server_is_reported_in_one_line(arguments: list[str], named: str) -> None:
    assert named in one_line(ran(*arguments), 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "absent.safetensors"], "absent.safetensors"),
        (["--decoder", "greedy", "--api-keys-file", "absent.keys"], "--api-keys-file"),
    ],
)
def test_a_server_that_cannot_start_says_so_in_one_line(options: list[str], named: str) -> None:
    done = process(["-m", "server.cli", "serve", "--port", "0", *options])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("tutti: ")]
    assert named in line


ALL_IN_TURN = """
import json, sys
from server.cli import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as error:
        print(arguments[0], "exits with", error.code)
"""


def test_every_command_rejects_a_precision_without_processor_support_in_one_line(tmp_path: Path) -> None:
    """bf16 needs AVX-512; torch and oneDNN are set to ignore it."""
    out = str(tmp_path / "out.json")
    commands = [
        ["serve", "--port", "0"],
        ["transcribe", RECORDING],
        ["evaluate", *MANIFEST],
        ["ceiling"],
        ["calibrate", "--out", out],
        ["lm", "tune", *MANIFEST, "--out", out],
    ]
    asked = json.dumps([[*arguments, "--model", "gru", "--precision", "bf16"] for arguments in commands])
    done = process(["-c", ALL_IN_TURN, asked], ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2")
    assert done.stdout.splitlines() == [f"{arguments[0]} exits with 1" for arguments in commands], done.stderr
    [error] = {line for line in done.stderr.splitlines() if "compiling for this processor" not in line}
    assert error.startswith("tutti: precision bf16 needs a processor with")
    assert error.endswith("use --precision int8, fp32 or auto")


def test_an_unwritable_file_is_reported_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "calibration.json"
    shipped = import_module("tutti_asr_lab.simulation.calibration").shipped()
    command = import_module("tutti_asr_lab.planning.calibrate")
    monkeypatch.setattr(command, "calibrate", lambda **_: shipped)  # measuring takes minutes
    result = ran("calibrate", "--out", str(out))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert str(out.parent) in result.stderr
