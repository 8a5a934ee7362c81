"""Generator of `docs/upgrading.md` from the records of releases, this tree, and the notes on wire and meanings.

`python -m server.tools.upgrading.page` writes the page; a test checks that it is current.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from server.configuration.variables import PREFIX
from server.tools.upgrading.changes import (
    NOTES,
    Notes,
    other_defaults,
    other_forms,
    removed_metrics,
    removed_parameters,
    removed_settings,
)
from server.tools.upgrading.releases import MetricForm, Release, releases, this_tree

PAGE = Path(__file__).parents[3] / "docs" / "upgrading.md"
HEAD = """# Upgrading

1. Run `tutti doctor --from VERSION` of the new version, with the variables and options of the old server. It reports
   variables that are no settings any more, settings with another meaning or default, the tickets' version, and metrics
   and parameters that are gone.
2. Replace one replica after the other: drain it ([drain.md](drain.md)), start the new version, wait for `/readyz`.
3. Give both versions the same `TUTTI_RESUME_KEYS_FILE`, so that resumable streams move between them.

While old and new replicas run at the same time:

| stream | when its replica is replaced |
|---|---|
| plain | ends within `drain_timeout_s`; what is left then is flushed and closed with 1012 |
| resumable, same version of tickets | continues on another replica from its ticket, with the same text |
| resumable, other version of tickets, or other model | `TICKET_VERSION` or `TICKET_MODEL`, see below |
| resumable, from a version without tickets | as in the row above, without a refusal |

After a refused ticket the client sends the audio since the last final again. No audio is lost; the segment that was
open may be divided or worded differently. Clients of an older version work with a newer server, except for what
**Wire** lists. Go back in the same way: an old server refuses the tickets of a new one.

A test does this with two versions under load, through HAProxy: `tests/deploy/test_upgrade.py`.

Written by `python -m server.tools.upgrading.page` from `server/tools/upgrading`.
"""


def page() -> str:
    """Return the whole page, the newest release first."""
    new = this_tree()
    sections = [section(version, old, new) for version, old in reversed(releases().items())]
    return "\n".join([HEAD, *sections])


def section(version: str, old: Release, new: Release) -> str:
    """Return what an upgrade from one version changes."""
    notes = NOTES.get(version, Notes(()))
    parts = [f"## From {version}", "", *_wire(notes, old, new), "", *_settings(version, notes, old, new), ""]
    return "\n".join([*parts, *_metrics(version, notes, old, new), "", *_tickets(version, old, new), ""])


def _wire(notes: Notes, old: Release, new: Release) -> Iterable[str]:
    yield from ("### Wire", "", "| change | what to do |", "|---|---|")
    yield from (f"| {change} | {advice} |" for change, advice in notes.wire)
    for name in removed_parameters(old, new):
        yield f"| `{name}` of `/v1/listen` is refused | leave it out |"
    added = [name for name in new.parameters if name not in old.parameters]
    yield from ("", f"New parameters of `/v1/listen`: {_names(added)}.")


def _settings(version: str, notes: Notes, old: Release, new: Release) -> Iterable[str]:
    yield from ("### Settings", "", "| setting | change |", "|---|---|")
    for name in removed_settings(old, new):
        successor = notes.renamed_settings.get(name)
        yield f"| `{_variable(name)}` | removed{f': use `{_variable(successor)}`' if successor else ''} |"
    for name, (before, after) in other_defaults(old, new).items():
        yield f"| `{_variable(name)}` | default `{after}`; {version}: `{before}` |"
    for name, text in (notes.meanings | notes.behavior).items():
        yield f"| `{_variable(name)}` | {text} |"
    added = [_variable(name) for name in new.settings if name not in old.settings]
    yield from ("", f"New ([settings.md](settings.md)): {_names(added)}.")


def _metrics(version: str, notes: Notes, old: Release, new: Release) -> Iterable[str]:
    yield from ("### Metrics", "", "| metric | change |", "|---|---|")
    for name in removed_metrics(old, new):
        successor = notes.renamed_metrics.get(name)
        yield f"| `{name}` | {f'renamed to `{successor}`' if successor else 'removed'} |"
    for name, (before, after) in other_forms(old, new).items():
        yield f"| `{name}` | {_form(after)}; {version}: {_form(before)} |"
    added = [name for name in new.metrics if name not in old.metrics]
    yield from ("", f"New: {_names(added)}.")


def _tickets(version: str, old: Release, new: Release) -> Iterable[str]:
    before = f"of version {old.ticket}" if old.ticket is not None else "none"
    yield from ("### Tickets", "", f"Version {new.ticket}; {version}: {before}.")


def _form(form: MetricForm) -> str:
    labels = f" with {_names(form.labels)}" if form.labels else " without labels"
    return f"{form.type}{labels}"


def _variable(name: str) -> str:
    return f"{PREFIX}{name}".upper()


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
