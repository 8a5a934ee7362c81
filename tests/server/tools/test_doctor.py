"""`tutti doctor`: a healthy installation passes, and each problem is reported with advice."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from server.cli import app
from server.configuration import variables
from server.settings import Settings
from server.tools import doctor_access, doctor_machine, doctor_model
from server.tools.doctor import Check, Finding, Verdict, document, examine, line, ok
from tests.support.needs import need_ipv6


def findings(check: Check, **settings: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in check(Settings(**settings))}


def test_this_installation_passes_with_a_json_report() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = CliRunner().invoke(app, ["doctor", "--json", "--port", str(port)])
    report = json.loads(done.stdout.splitlines()[-1])
    failed = [check for check in report["checks"] if check["verdict"] == "fail"]
    assert (done.exit_code, failed, report["ok"]) == (0, [], True)
    assert {check["name"] for check in report["checks"]} >= {
        "python",
        "packages",
        "processor",
        "memory",
        "open files",
        "port",
        "wall clock",
        "weights",
        "device",
        "precision",
        "states",
        "caches",
        "batch invariance",
        "decoder",
    }
    assert all(check["advice"] for check in report["checks"] if check["verdict"] != "ok")


def test_the_file_of_written_forms_is_checked(tmp_path: Path) -> None:
    assert not findings(doctor_access.written_forms)
    path = tmp_path / "forms.tsv"
    path.write_text("a s r\tASR\n")
    finding = findings(doctor_access.written_forms, written_forms=path)["written forms"]
    assert (finding.verdict, finding.found) == (Verdict.OK, f"1 phrases in {path}")
    path.write_text("a s r ASR\n")
    finding = findings(doctor_access.written_forms, written_forms=path)["written forms"]
    assert (finding.verdict, finding.found.partition(": ")[0]) == (Verdict.FAIL, f"{path}:1")
    assert finding.advice.startswith("correct --written-forms (TUTTI_WRITTEN_FORMS): on each line a phrase, a tab")


def test_the_folder_of_the_usage_log_is_checked(tmp_path: Path) -> None:
    assert not findings(doctor_access.usage_log)
    (tmp_path / "file").write_text("")
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage" / "usage-a.jsonl").write_bytes(bytes(2**20))
    for name, verdict, text in (
        ("new", Verdict.OK, "new will be created"),
        ("usage", Verdict.OK, "usage has 1 files, 1.0 MiB"),
        ("file", Verdict.FAIL, "file is not a folder"),
    ):
        finding = findings(doctor_access.usage_log, usage_log=tmp_path / name)["usage log"]
        assert finding.verdict is verdict
        assert finding.found.endswith(text)


def test_a_port_in_use_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = findings(doctor_machine.ports, port=port)["port"]
    assert finding.verdict is Verdict.FAIL
    assert str(port) in finding.found
    assert "--port" in finding.advice


@pytest.mark.parametrize("taken_on", ["127.0.0.1", "::1"])
def test_the_ipv6_wildcard_address_also_checks_ipv4(taken_on: str) -> None:
    need_ipv6()
    family = socket.AF_INET6 if ":" in taken_on else socket.AF_INET
    with socket.create_server((taken_on, 0), family=family) as taken:
        finding = findings(doctor_machine.ports, host="[::]", port=taken.getsockname()[1])["port"]
    assert finding.verdict is Verdict.FAIL
    assert finding.found.startswith("[::]:")


def test_a_check_that_raises_fails_and_the_next_one_runs() -> None:
    def breaks(_: Settings) -> Iterator[Finding]:
        raise OSError("no such device")
        yield

    def works(_: Settings) -> Iterator[Finding]:
        yield ok("second", "fine")

    found: list[Finding] = []
    assert not examine(Settings(), (breaks, works), found.append)
    assert [finding.verdict for finding in found] == [Verdict.FAIL, Verdict.OK]
    assert "no such device" in line(found[0])
    assert json.loads(document(found, well=False))["ok"] is False


def test_doctor_has_the_options_of_serve() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    serve, doctor = ({each.name: each for each in commands[name].params} for name in ("serve", "doctor"))
    assert set(doctor) == {*serve, "as_json"}
    for name, option in serve.items():
        assert (doctor[name].opts, doctor[name].help) == (option.opts, option.help)
    assert set(serve) & set(Settings.model_fields) == variables.OPTIONS == set(serve) - {"help"}


def test_doctor_checks_options_and_variables_of_serve(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("not a digest\n")
    options = [
        "--port",
        "0",
        "--decoder",
        "greedy",
        "--api-keys-file",
        str(keys),
        "--max-batch",
        "4",
        "--log-level",
        "error",
    ]
    variables = {"TUTTI_RESUME_KEYS": "short", "TUTTI_MODEL": "small"}
    done = CliRunner().invoke(app, ["doctor", "--json", *options], env=variables)
    report = json.loads(done.stdout.splitlines()[-1])
    failed = {check["name"]: check for check in report["checks"] if check["verdict"] == "fail"}
    assert (done.exit_code, set(failed)) == (1, {"keys of clients", "keys of tickets"})
    assert "--api-keys-file (TUTTI_API_KEYS_FILE)" in failed["keys of clients"]["advice"]
    assert f"{keys}:1" in failed["keys of clients"]["found"]
    assert failed["keys of tickets"]["advice"] == "correct TUTTI_RESUME_KEYS: keys created by `tutti keys resume`"
    assert "short" not in failed["keys of tickets"]["found"]


WRONG = {  # invalid settings, and the option and variable that the advice must name
    "a language model": ({"lm": "absent.arpa"}, "--lm (TUTTI_LM)"),
    "a model": ({"model": "absent.safetensors"}, "--model (TUTTI_MODEL)"),
    "a model's folder": ({"model": "."}, "--model (TUTTI_MODEL)"),
    "a file of models": ({"models_file": "absent.toml"}, "--models-file (TUTTI_MODELS_FILE)"),
    "grammars": ({"grammars": "absent", "lm": "off", "decoder": "beam"}, "--grammars (TUTTI_GRAMMARS)"),
    "a device": ({"device": "cuda"}, "--device (TUTTI_DEVICE)"),
    "a precision": ({"precision": "fp16", "device": "cpu"}, "--precision (TUTTI_PRECISION)"),
    "keys of operators": ({"admin_keys_file": "absent"}, "TUTTI_ADMIN_KEYS_FILE"),
    "keys of tokens": ({"token_keys": ["short"]}, "TUTTI_TOKEN_KEYS"),
    "a file of keys of tokens": ({"token_keys_file": "absent"}, "TUTTI_TOKEN_KEYS_FILE"),
    "a file of keys of tickets": ({"resume_keys_file": "absent"}, "--resume-keys-file (TUTTI_RESUME_KEYS_FILE)"),
    "origins": ({"allowed_origins": ["example.org"]}, "TUTTI_ALLOWED_ORIGINS"),
    "an address": ({"host": "192.0.2.1", "port": 8080}, "--host (TUTTI_HOST)"),
    "a name that is no host": ({"host": "no.such.host.invalid", "port": 8080}, "--host (TUTTI_HOST)"),
    "a port for two": ({"port": 48_080, "vosk_port": 48_080}, "--vosk-port (TUTTI_VOSK_PORT)"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "named"), WRONG.values(), ids=WRONG)
def test_the_advice_names_the_invalid_setting(wrong: dict[str, Any], named: str) -> None:
    if wrong.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found: list[Finding] = []
    checks = (doctor_machine.ports, *doctor_access.CHECKS, doctor_model.model)
    settings = {"model": "small", "port": 0} | wrong
    settings |= {"model": None} if "models_file" in wrong else {}
    assert not examine(Settings(**settings), checks, found.append)
    failed = [one for one in found if one.verdict is Verdict.FAIL]
    assert {named in one.advice for one in failed} == {True}, [line(one) for one in failed]


def test_a_server_without_keys_on_a_public_address_gives_a_warning() -> None:
    assert findings(doctor_access.keys)["keys"].verdict is Verdict.OK
    assert findings(doctor_access.keys, host="0.0.0.0")["keys"].verdict is Verdict.WARN
    assert findings(doctor_access.keys, host="0.0.0.0", api_keys=["k"])["keys"].verdict is Verdict.OK
    assert "closed" in findings(doctor_access.keys)["admin"].found


def test_too_low_a_limit_of_open_files_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    finding = findings(doctor_machine.files, max_streams=512)["open files"]
    assert (finding.verdict, "1024 needed" in finding.found) == (Verdict.FAIL, True)


def test_a_wall_clock_earlier_than_the_installation_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine.time, "time", lambda: 1_000_000_000.0)
    assert findings(doctor_machine.wall_clock)["wall clock"].verdict is Verdict.WARN


def test_missing_and_outdated_packages_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=99", "no-such-package>=1", "torch; extra == 'never'", "of-traces; extra == 'otel'"]
    monkeypatch.setattr(doctor_machine, "requires", lambda _: wanted)
    finding = findings(doctor_machine.versions)["packages"]
    assert finding.verdict is Verdict.FAIL
    assert "of-traces" not in finding.found
    assert f"numpy>=99 is required, {np.__version__} is installed; no-such-package is missing" in finding.found


def test_a_bad_setting_exits_with_status_2() -> None:
    done = CliRunner().invoke(app, ["doctor", "--decoder", "flashlight"])
    assert done.exit_code == 2
    assert "decoder" in done.output


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore the process's compute threads, which `tutti doctor` changes."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
