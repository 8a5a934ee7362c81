"""`TUTTI_…` variables: unknown names, empty values, and the texts of lists."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.settings import Settings
from server.settings_variables import check_names, listed

LISTS = ("api_keys", "token_keys", "resume_keys", "admin_keys", "allowed_origins")


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
    assert ran.output.strip() == "tutti: TUTTI_MAX_STREAM is not a setting: did you mean TUTTI_MAX_STREAMS?"


@pytest.mark.parametrize(
    "name", ["TUTTI_API_KEY", "TUTTI_SERVICE_HOST", "TUTTI_PORT_8080_TCP_ADDR", "TUTTI_ADMIN_SERVICE_PORT_HTTP", "PATH"]
)
def test_variables_of_clients_and_of_kubernetes_services_are_known(name: str) -> None:
    check_names([name], Settings.model_fields)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("text", ["one\ntwo\n", "one,two", "one two", '["one", "two"]', "# keys\none # first\ntwo"])
def test_lists_are_read_with_any_separator(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TUTTI_{name.upper()}", text)
    values = getattr(Settings(), name)
    assert [value if isinstance(value, str) else value.get_secret_value() for value in values] == ["one", "two"]


@pytest.mark.parametrize("name", [*LISTS, "models", "model_aliases"])
def test_a_bad_value_is_refused_in_one_line_without_the_value(name: str) -> None:
    ran = CliRunner().invoke(app, ["serve"], env={f"TUTTI_{name.upper()}": '["secret-value'})
    assert ran.exit_code == 2
    assert len(ran.output.strip().splitlines()) == 1
    assert "secret-value" not in ran.output


def test_a_list_that_is_no_json_array_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON array"):
        listed('["a')
