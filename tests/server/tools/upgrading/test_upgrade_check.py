"""`tutti doctor --from VERSION` reports what an upgrade changes; `docs/upgrading.md` is current and complete."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import pytest
from typer.testing import CliRunner

from server.cli import app
from server.resume import tickets
from server.settings import Settings
from server.tools.doctor import Finding, Verdict
from server.tools.upgrading.changes import NOTES, Notes, other_forms, removed_metrics, removed_settings
from server.tools.upgrading.check import upgrade_check
from server.tools.upgrading.page import PAGE, page
from server.tools.upgrading.releases import Release, metric_forms, releases, this_tree
from tests.support.audio.speech import ROOT

OLD = releases()["0.1.0"]
CHANGES = (ROOT / "CHANGELOG.md").read_text().split("## [Unreleased]")[1].split("\n## [")[0]


def findings(
    old: Release = OLD, variables: Mapping[str, str] | None = None, version: str = "0.1.0", **settings: object
) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in upgrade_check(version, old, this_tree(), variables or {})(Settings(**settings)):
        found.setdefault(finding.name, []).append(finding)
    return found


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m server.tools.upgrading.page`"


def test_a_server_of_this_version_has_nothing_to_change() -> None:
    found = findings(this_tree(), {"TUTTI_PORT": "1", "HOME": "/"}, version="this")
    assert {finding.verdict for each in found.values() for finding in each} == {Verdict.OK}
    assert set(found) == {"variables", "tickets", "metrics", "parameters"}


def test_every_variable_that_is_no_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOTES, "0.1.0", Notes((), renamed_settings={"ports": "port"}))
    old = msgspec.structs.replace(OLD, settings=OLD.settings | {"ports": 1, "color": "red"})
    found = findings(old, {"TUTTI_PORTS": "1", "TUTTI_COLOR": "1", "TUTTI_MAX_STREAM": "2", "TUTTI_HOST": "x"})
    assert [(each.verdict, each.found, each.advice) for each in found["variables"]] == [
        (Verdict.FAIL, "TUTTI_COLOR: a setting of 0.1.0 that no longer exists", "remove it (docs/upgrading.md)"),
        (Verdict.FAIL, "TUTTI_MAX_STREAM: not a setting", "did you mean TUTTI_MAX_STREAMS?"),
        (Verdict.FAIL, "TUTTI_PORTS: a setting of 0.1.0 that no longer exists", "use --port (TUTTI_PORT)"),
    ]


def test_the_command_names_variables_that_other_commands_refuse() -> None:
    done = CliRunner().invoke(app, ["doctor", "--from", "0.1.0", "--port", "0"], env={"TUTTI_MAX_STREAM": "2"})
    assert done.exit_code == 1
    assert "fail  variables: TUTTI_MAX_STREAM: not a setting" in done.stdout
    assert "tickets: 0.1.0 issues no tickets" in done.stdout
    wrong = CliRunner().invoke(app, ["doctor", "--from", "0.0.9"])
    assert (wrong.exit_code, "must be one of 0.1.0" in wrong.output) == (2, True)


def test_settings_in_use_are_reported_where_meaning_or_default_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUTTI_FRONT_ENDS")
    unset, both = findings(), findings(max_streams=100, drain_timeout_s=5.0)
    assert "meaning" not in unset
    assert [each.found.split()[0] for each in unset["default"]] == [
        "max_streams",
        "vad",
        "drain_timeout_s",
        "decoder:",
        "front_ends:",
    ]
    assert "drain_timeout_s is 20 by default; 0.1.0: 5" in [each.found for each in unset["default"]]
    assert "counts channels" in both["meaning"][0].found
    assert [each.found.split()[0] for each in both["default"]] == ["vad", "decoder:", "front_ends:"]


@pytest.mark.parametrize("ticket", [None, tickets.VERSION - 1, tickets.VERSION])
def test_the_form_of_tickets_is_compared(ticket: int | None) -> None:
    [found] = findings(msgspec.structs.replace(OLD, ticket=ticket))["tickets"]
    assert (found.verdict is Verdict.OK) == (ticket == tickets.VERSION)
    assert ("TICKET_VERSION" in found.found) == (ticket == tickets.VERSION - 1)


def test_metrics_and_parameters_that_are_gone_are_named() -> None:
    found = findings()
    assert "tutti_state_pool_slots_total (now tutti_state_pool_slots)" in found["metrics"][0].found
    assert "other labels: tutti_batch_queue_depth" in found["metrics"][0].found
    assert found["parameters"][0].found.endswith("dictation")


def test_the_form_of_a_metric_is_read_from_its_samples() -> None:
    text = '# TYPE tutti_a_total counter\ntutti_a_total{x="1"} 1\n# TYPE tutti_b gauge\n# TYPE other gauge\nother 1\n'
    found = metric_forms(text)
    assert {name: (form.type, form.labels) for name, form in found.items()} == {
        "tutti_a_total": ("counter", ["x"]),
        "tutti_b": ("gauge", None),
    }


def test_notes_name_what_the_records_show_and_what_the_changelog_says() -> None:
    for version, notes in NOTES.items():
        old, new = releases()[version], this_tree()
        assert set(notes.renamed_metrics) <= set(removed_metrics(old, new))
        assert set(notes.renamed_metrics.values()) <= set(new.metrics)
        assert set(notes.renamed_settings) == set(removed_settings(old, new)) & set(notes.renamed_settings)
        assert set(notes.meanings) <= set(old.settings) & set(new.settings)
        assert set(notes.behavior) <= set(new.settings) - set(old.settings)
        assert other_forms(old, new)
        named = [word for change, advice in notes.wire for word in re.findall(r"`([^`]+)`", change + advice)]
        assert [word for word in named if word.startswith(("--", "/", "tutti"))], "something is compared"
        for word in named:
            if word.startswith(("--", "/admin", "/redoc", "tutti")):
                assert word.split("=")[0].split("[")[0] in CHANGES, word


def test_every_setting_and_metric_that_the_changelog_calls_changed_is_on_the_page() -> None:
    changed = CHANGES.split("### Changed")[1].split("### Fixed")[0] + CHANGES.split("### Removed")[1]
    new, old = this_tree(), OLD
    names = set(re.findall(r"`(?:TUTTI_|tutti_)?([a-zA-Z]+_[a-zA-Z_]+)(?:=\w+)?`", changed))
    metrics = {f"tutti_{name}" for name in names} & (set(new.metrics) | set(old.metrics))
    settings = {name.lower() for name in names} & (set(new.settings) | set(old.settings))
    assert metrics
    assert settings
    written = page()
    assert not [name for name in metrics if name not in written]
    assert not [name for name in settings if f"TUTTI_{name.upper()}" not in written]


def test_the_changelog_states_the_version_of_tickets() -> None:
    assert f"Tickets of resumed streams have version {tickets.VERSION}." in CHANGES
