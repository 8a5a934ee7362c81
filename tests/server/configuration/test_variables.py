"""`TUTTI_…` variables: unknown names, empty values, and the texts of lists."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.configuration.variables import check_names, listed
from server.settings import Settings

LISTS = ("api_keys", "token_keys", "resume_keys", "admin_keys", "allowed_origins", "callback_hosts")


@pytest.mark.parametrize("name", Settings.model_fields)
def test_an_empty_variable_means_not_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TUTTI_{name.upper()}", "")
    assert getattr(Settings(), name) == Settings.model_fields[name].get_default(call_default_factory=True)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_typing_error_in_a_name_is_refused_with_the_right_name(name: str) -> None:
    with pytest.raises(ValueError, match="did you mean TUTTI_"):
        check_names([f"TUTTI_{name.upper()}X"], Settings.model_fields)
    check_names([f"TUTTI_{name.upper()}"], Settings.model_fields)


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_commands_refuse_an_unknown_variable_in_one_line(command: str) -> None:
    ran = CliRunner().invoke(app, [command], env={"TUTTI_MAX_STREAM": "3"})
    assert ran.exit_code == 2
    assert ran.output.strip() == "tutti: TUTTI_MAX_STREAM: not a setting; did you mean TUTTI_MAX_STREAMS?"


@pytest.mark.parametrize(
    "name", ["TUTTI_API_KEY", "TUTTI_SERVICE_HOST", "TUTTI_PORT_8080_TCP_ADDR", "TUTTI_ADMIN_SERVICE_PORT_HTTP", "PATH"]
)
def test_variables_of_clients_and_of_kubernetes_services_are_known(name: str) -> None:
    check_names([name], Settings.model_fields)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("text", ["one\ntwo\n", "one,two", "one two", '["one", "two"]', "# keys\none # first\ntwo"])
def test_lists_are_read_with_any_separator(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TUTTI_{name.upper()}", text)
    if name == "callback_hosts":
        monkeypatch.setenv("TUTTI_CALLBACK_FOLDER", "callbacks")
    values = getattr(Settings(), name)
    assert [value if isinstance(value, str) else value.get_secret_value() for value in values] == ["one", "two"]


NUMBERS = ("nan", "inf", "-inf", "1e999", "1e300", "9" * 20, "-1", "-0.5", "abc", "1,5", "0x10", " ")
TEXTS = {"host", "commit", "second_pass", "twilio_auth_token", "callback_secret"}  # which any text can be


def bad_values(name: str) -> tuple[str, ...]:
    """Texts that a scalar setting must refuse, by its type."""
    kind = str(Settings.model_fields[name].annotation)
    if "int" in kind or "float" in kind:
        bad = NUMBERS if name in {"min_endpoint_ms", "drain_timeout_s"} else (*NUMBERS, "1e-300")  # these can be 0
        return (*bad, "0.5") if "float" not in kind else bad
    if "bool" in kind:
        return ("maybe", "2", "-1", "nan", " ")
    if "Literal" in kind and "Path" not in kind:
        return ("nonsense", "-1", "nan", " ")
    if name.endswith(("_url", "_endpoint")):
        return ("nan", "-1", "example.org", "ftp://example.org", "http://", "wss:// x", "http://h:x", " ")
    if name in {"wyoming_port", "audiosocket_port"}:
        return ("abc", "70000", "127.0.0.1:", "127.0.0.1:-1")
    return ()


SCALARS = [name for name in Settings.model_fields if bad_values(name)]


def test_every_setting_but_lists_tables_paths_and_texts_is_checked() -> None:
    rest = {name for name in Settings.model_fields if name not in SCALARS}
    paths = {name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)}
    assert rest == {*LISTS, "models", "model_aliases", *paths, *TEXTS}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name in SCALARS for bad in bad_values(name)])
def test_a_bad_value_of_a_variable_is_refused_in_one_sentence_that_names_it(name: str, bad: str) -> None:
    variable = f"TUTTI_{name.upper()}"
    ran = CliRunner().invoke(app, ["serve"], env={variable: bad})
    assert ran.exit_code == 2, ran.output
    (line,) = ran.output.splitlines()
    assert re.match(rf"tutti: (--[\w-]+ \()?{variable}\)?: (Input should|must|cannot) ", line), line


@pytest.mark.parametrize("name", [*LISTS, "models", "model_aliases"])
def test_a_bad_value_is_refused_in_one_line_without_the_value(name: str) -> None:
    ran = CliRunner().invoke(app, ["serve"], env={f"TUTTI_{name.upper()}": '["secret-value'})
    assert ran.exit_code == 2
    assert len(ran.output.strip().splitlines()) == 1
    assert "secret-value" not in ran.output


@pytest.mark.parametrize(("text", "why"), [('["a', "not a JSON array"), (" , \n# none", "must have an item")])
def test_a_list_that_is_no_json_array_or_empty_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        listed(text)


@pytest.mark.parametrize(
    ("options", "env", "problem"),
    [
        ([], {"VOICES": "v"}, "--voices (TUTTI_VOICES): needs --speakers (TUTTI_SPEAKERS)"),
        ([], {"CALLBACK_HOSTS": "h"}, "TUTTI_CALLBACK_HOSTS: needs TUTTI_CALLBACK_FOLDER"),
        ([], {"CALLBACK_FOLDER": "f"}, "TUTTI_CALLBACK_FOLDER: needs TUTTI_CALLBACK_HOSTS"),
        ([], {"CALLBACK_SECRET": "s"}, "TUTTI_CALLBACK_SECRET: needs TUTTI_CALLBACK_HOSTS"),
        ([], {"TWILIO_PUBLIC_URL": "wss://a.example"}, "TUTTI_TWILIO_PUBLIC_URL: needs TUTTI_TWILIO_AUTH_TOKEN"),
        (["--decoder", "greedy"], {"BEAMS": "8"}, "--beams (TUTTI_BEAMS): cannot be combined with --decoder greedy"),
        (["--decoder", "greedy", "--lm", "x"], {}, "--lm (TUTTI_LM): cannot be combined with --decoder greedy"),
    ],
)
def test_a_setting_that_others_make_void_is_refused(options: list[str], env: dict[str, str], problem: str) -> None:
    ran = CliRunner().invoke(app, ["serve", *options], env={f"TUTTI_{name}": text for name, text in env.items()})
    assert (ran.exit_code, ran.stderr.split(";")[0]) == (2, f"tutti: {problem}")
