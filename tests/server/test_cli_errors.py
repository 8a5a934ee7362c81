"""Errors of the command line: one line that names the option or variable, whichever layer rejects it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from server.cli import app
from tests.support.audio.speech import SAMPLES

RECORDING = str(SAMPLES.parent / "yes.flac")


def ran(*arguments: str, **variables: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env=variables)


def one_line(result: Any, status: int = 2) -> str:
    """Return a command's error, which must be a single line."""
    assert result.exit_code == status, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert not result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in lines[0]
    assert lines[0].startswith("tutti: ")
    return str(lines[0].removeprefix("tutti: "))


def names(error: str, named: str) -> bool:
    """Whether an error names an option, a variable or an argument, and not only as a part of another name."""
    return re.search(rf"(?<![\w-]){re.escape(named)}(?![\w-])", error) is not None


def every_command() -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        yield from (((name, sub), one) for sub, one in inner.items())
        if not inner:
            yield (name,), command


COMMANDS = dict(every_command())


def bad_values(parameter: Any) -> list[str]:
    """Values that are invalid for any option of this type."""
    kind = str(parameter.type_descriptor.annotation)
    bad = [] if parameter.default == "" else [""]
    if re.search(r"\b(int|float)\b", kind):
        bad += ["ten", "nan", "inf", "-inf"]
    if parameter.type_descriptor.is_choice:
        bad += ["nonsense"]
    if getattr(parameter, "min", None) is not None:
        bad += ["-1000000"]
    return bad


CASES = [
    pytest.param(name, parameter, bad, id=f"{' '.join(name)} {max(parameter.opts, key=len)} {bad!r}")
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and not parameter.is_flag
    for bad in bad_values(parameter)
]


@pytest.mark.parametrize(("name", "parameter", "bad"), CASES)
def test_every_option_of_every_command_reports_a_bad_value_in_one_line(
    name: tuple[str, ...], parameter: Any, bad: str
) -> None:
    option = max(parameter.opts, key=len)
    assert names(one_line(ran(*name, f"{option}={bad}")), option)


def required(command: Any) -> Iterator[str]:
    """Yield the required options and arguments of a command."""
    for parameter in command.params:
        if parameter.required:
            yield from (parameter.opts[0], "0") if parameter.param_type_name == "option" else ("a",)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_rejects_unknown_options_and_variables_in_one_line(name: tuple[str, ...]) -> None:
    assert one_line(ran(*name, "--no-such-option")).startswith("No such option: --no-such-option")
    error = one_line(ran(*name, *required(COMMANDS[name]), TUTTI_MAX_STREAM="3"))
    assert error == "TUTTI_MAX_STREAM: not a setting; did you mean TUTTI_MAX_STREAMS?"


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if any(each.required for each in one.params)])
def test_a_missing_option_or_argument_is_named(name: tuple[str, ...]) -> None:
    assert re.match(r"Missing (option|argument) '", one_line(ran(*name)))


def test_several_values_after_one_repeatable_option_are_refused_with_advice() -> None:
    error = one_line(ran("quantize", "model", "--audio", "a.wav", "b.wav", "c.wav"))
    assert "(b.wav c.wav); each value needs its own --audio; see `tutti quantize --help`" in error


def test_help_works_with_unknown_variables_set() -> None:
    assert ran("serve", "--help", TUTTI_MAX_STREAM="3").exit_code == 0
    shown = ran()
    assert "Usage" in shown.output


BY_COMMANDS = {  # values that only the command itself can check
    "unknown command": (["sreve"], "sreve"),
    "unexpected argument": (["serve", "now"], "now"),
    "option without a value": (["serve", "--port"], "--port"),
    "flag with a value": (["serve", "--reproducible=yes"], "--reproducible"),
    "choice of a setting": (["serve", "--policy", "greedy"], "--policy"),
    "bounds of a setting": (["serve", "--port", "70000"], "--port"),
    "number or word": (["serve", "--max-streams", "many"], "--max-streams"),
    "device": (["serve", "--device", "tpu"], "--device"),
    "precision": (["doctor", "--precision", "fp8"], "--precision"),
    "models": (["serve", "--model", "a=b", "--model", "c"], "--model"),
    "two ways to name models": (["serve", "--model", "a", "--models-file", "b"], "--models-file"),
    "device without settings": (["ceiling", "--device", "tpu"], "--device"),
    "precision without settings": (["calibrate", "--precision", "fp8"], "--precision"),
    "decoder": (["calibrate", "--decoder", "beams"], "--decoder"),
    "policy": (["plan", "--policy", "greedy"], "--policy"),
    "calibration": (["plan", "--calibration", "absent.json"], "--calibration"),
    "levels": (["plan", "--levels", "ten"], "--levels"),
    "level of zero": (["plan", "--levels", "0"], "--levels"),
    "cores": (["plan", "--cores", "0"], "--cores"),
    "gpu without cores": (["plan", "--gpu"], "--gpu"),
    "cores and streams": (["plan", "--cores", "8", "--streams", "9"], "--streams"),
    "streams of a load": (["loadtest", "--streams", "ten"], "--streams"),
    "codec": (["evaluate", "--manifest", str(SAMPLES), "--codec", "gsm"], "--codec"),
    "precision among several": (["evaluate", "--manifest", str(SAMPLES), "--precision", "fp32,fp8"], "--precision"),
    "counts": (["lm", "train", str(SAMPLES), "--out", "o.arpa", "--min-count", "2,1"], "--min-count"),
    "mixture": (["lm", "train", str(SAMPLES), "--out", "o.arpa", "--mix", "half"], "--mix"),
    "weight": (["lm", "train", "absent:x", "--out", "o.arpa"], "TEXTS"),
    "name of a key": (["keys", "new", "--name", "a b"], "--name"),
    "name of a key that would be a quota": (["keys", "new", "--name", "streams=5"], "--name"),
    "origin of a key": (["keys", "new", "--origin", "example.org"], "--origin"),
    "format": (["transcribe", RECORDING, "--json", "--format", "srt"], "--format"),
    "ignored option": (["transcribe", RECORDING, "--resumable"], "--resumable"),
    "key of a client": (["transcribe", RECORDING, "--url", "ws://127.0.0.1:9", "--api-key", "a b"], "--api-key"),
    "address of a server": (["model", "list", "--url", "ftp://x"], "--url"),
    "port of an address": (["drain", "--url", "http://127.0.0.1:x"], "--url"),
    "address of an evaluation": (["evaluate", "--manifest", str(SAMPLES), "--url", "foo://x"], "--url"),
    "address of a load": (["loadtest", "--url", "foo://x"], "--url"),
    "address of recordings": (["transcribe", RECORDING, "--url", "foo://x"], "--url"),
    "admin key": (["drain", "--admin-key", "a\nb"], "--admin-key"),
}


@pytest.mark.parametrize(("arguments", "named"), BY_COMMANDS.values(), ids=BY_COMMANDS)
def test_errors_found_by_commands_have_the_common_form(arguments: list[str], named: str) -> None:
    assert names(one_line(ran(*arguments)), named)


@pytest.mark.parametrize(
    ("arguments", "variable", "value"),
    [
        (["serve"], "TUTTI_PORT", "70000"),
        (["doctor"], "TUTTI_MAX_STREAMS", "many"),
        (["transcribe", RECORDING], "TUTTI_LATENCY_BUDGET_MS", "inf"),
        (["evaluate", "--manifest", str(SAMPLES)], "TUTTI_BEAMS", "0"),
        (["model", "check"], "TUTTI_VAD", "on"),
        (["ceiling"], "TUTTI_DEVICE", "tpu"),
        (["ceiling"], "TUTTI_THREADS", "many"),
        (["plan"], "TUTTI_POLICY", "greedy"),
        (["plan"], "TUTTI_MAX_BATCH", "0"),
        (["transcribe", RECORDING], "TUTTI_PRECISION", "fp8"),
    ],
)
def test_a_bad_variable_is_named(arguments: list[str], variable: str, value: str) -> None:
    assert names(one_line(ran(*arguments, **{variable: value})), variable)


def test_an_option_overrides_its_variable() -> None:
    assert names(one_line(ran("serve", "--port", "70000", TUTTI_PORT="80")), "--port")


def test_each_bad_setting_is_reported_on_its_own_line() -> None:
    result = ran("serve", "--port", "70000", TUTTI_BEAMS="0", TUTTI_RESUME_KEYS="[", TUTTI_MODELS="[")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert sorted(line.split()[1].rstrip(":") for line in lines) == [
        "--port", "TUTTI_BEAMS=0", "TUTTI_MODELS", "TUTTI_RESUME_KEYS",
    ]  # fmt: skip


NO_FILE = {
    "a model": (["serve", "--port", "0", "--model", "absent.safetensors"], "absent.safetensors"),
    "a models file": (["serve", "--models-file", "absent.toml"], "--models-file"),
    "a keys file": (["serve", "--decoder", "greedy", "--api-keys-file", "absent.keys"], "--api-keys-file"),
    "resume keys": (["serve", "--decoder", "greedy", "--resume-keys-file", "absent.keys"], "--resume-keys-file"),
    "a key's file": (["keys", "new", "--file", "no/such/folder/keys"], "no/such/folder/keys"),
    "a manifest": (["evaluate", "--manifest", "absent.jsonl"], "absent.jsonl"),
    "a text": (["lm", "train", "absent.txt", "--out", "o.arpa"], "absent.txt"),
    "a language model": (["lm", "perplexity", "absent.arpa", "absent.txt"], "absent.arpa"),
    "a checkpoint": (["ceiling", "--model", "absent.safetensors"], "absent.safetensors"),
    "a server": (["drain", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
}


@pytest.mark.parametrize(("arguments", "named"), NO_FILE.values(), ids=NO_FILE)
def test_a_missing_file_or_server_is_reported_in_one_line(arguments: list[str], named: str) -> None:
    program = [sys.executable, "-m", "server.cli", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("tutti: ")]
    assert len(lines) == 1, done.stderr
    assert named in lines[0]


def test_an_unwritable_file_is_reported_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "plan.png"
    command = import_module("tutti_asr_lab.commands.plan")
    monkeypatch.setattr(command, "_draw", lambda *_: out.write_bytes(b""))  # drawing takes half a minute
    result = ran("plan", "--streams", "1", "--levels", "1", "--seconds", "1", "--plot", str(out))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert str(out.parent) in result.stderr
