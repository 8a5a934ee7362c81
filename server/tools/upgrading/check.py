"""Checks of `tutti doctor --from VERSION`: settings in use, tickets, metrics and parameters against that version."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from server.configuration.variables import PREFIX, check_names, spelled
from server.settings import Settings
from server.tools.doctor import Check, Finding, fail, ok, warn
from server.tools.upgrading.changes import (
    NOTES,
    Notes,
    other_defaults,
    other_forms,
    removed_metrics,
    removed_parameters,
    removed_settings,
)
from server.tools.upgrading.releases import Release

PAGE = "docs/upgrading.md"


def upgrade_check(version: str, old: Release, new: Release, environment: Mapping[str, str] = os.environ) -> Check:
    """Return the check of an upgrade from `version`, whose record is `old`, to `new`."""
    notes = NOTES.get(version, Notes(()))

    def upgrade(settings: Settings) -> Iterator[Finding]:
        """Compare the settings in use and what others depend on with the earlier version."""
        yield from _variables(version, notes, old, new, environment)
        yield from _values(version, notes, old, new, settings)
        yield _tickets(version, old, new)
        yield _metrics(version, notes, old, new)
        yield _parameters(version, old, new)

    return upgrade


def _variables(
    version: str, notes: Notes, old: Release, new: Release, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Report every variable that is no setting: removed since then, or never one."""
    gone = {f"{PREFIX}{name}".upper(): name for name in removed_settings(old, new)}
    well = True
    for variable in sorted(name for name in environment if name.upper().startswith(PREFIX)):
        name = gone.get(variable.upper())
        if name is not None:
            well = False
            successor = notes.renamed_settings.get(name)
            advice = f"use {spelled(successor)}" if successor else f"remove it ({PAGE})"
            yield fail("variables", f"{variable}: a setting of {version} that no longer exists", advice)
            continue
        try:
            check_names([variable], new.settings)
        except ValueError as error:
            well = False
            problem, _, advice = str(error).rpartition("; ")
            yield fail("variables", problem, advice)
    if well:
        yield ok("variables", f"every {PREFIX}… variable is a setting of this version")


def _values(version: str, notes: Notes, old: Release, new: Release, settings: Settings) -> Iterator[Finding]:
    """Report settings in use that mean something else, and defaults in use that are others."""
    for name, meaning in notes.meanings.items():
        if name in settings.model_fields_set:
            yield warn("meaning", f"{spelled(name)} {meaning}", "check its value")
    for name, (before, after) in other_defaults(old, new).items():
        if name not in settings.model_fields_set:
            advice = f"to keep that of {version}: {spelled(name, _shown(before))}"
            yield warn("default", f"{name} is {_shown(after)} by default; {version}: {_shown(before)}", advice)
    for name, change in notes.behavior.items():
        if name not in settings.model_fields_set:
            yield warn("default", f"{name}: {change}", f"choose by {spelled(name)}")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tickets(version: str, old: Release, new: Release) -> Finding:
    if old.ticket is None:
        found = f"{version} issues no tickets: its streams end with the drain, or their clients send audio again"
        return warn("tickets", found, f"drain the old replicas with time for their calls ({PAGE})")
    if old.ticket == new.ticket:
        return ok("tickets", f"version {new.ticket}, as in {version}: resumable streams move between both versions")
    found = f"version {new.ticket}; {version}: {old.ticket}. Its tickets are refused with TICKET_VERSION"
    return warn("tickets", found, "nothing: clients send the audio since the last final again")


def _metrics(version: str, notes: Notes, old: Release, new: Release) -> Finding:
    gone = [
        f"{name} (now {notes.renamed_metrics[name]})" if name in notes.renamed_metrics else name
        for name in removed_metrics(old, new)
    ]
    labeled = list(other_forms(old, new))
    if not gone and not labeled:
        return ok("metrics", f"those of {version} have the same names, types and labels")
    parts = [f"gone: {', '.join(gone)}"] * bool(gone) + [f"other labels: {', '.join(labeled)}"] * bool(labeled)
    return warn("metrics", "; ".join(parts), "change dashboards and alerts that name them")


def _parameters(version: str, old: Release, new: Release) -> Finding:
    gone = removed_parameters(old, new)
    if not gone:
        return ok("parameters", f"those of /v1/listen in {version} have an effect")
    advice = f"clients leave them out, or set {spelled('lenient_features')}"
    return warn("parameters", f"of /v1/listen, refused now: {', '.join(gone)}", advice)
