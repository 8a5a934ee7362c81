"""Findings of `tutti doctor`: how checks run and how results are shown. Read-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from server.configuration.variables import spelled
from server.settings import Settings


class Verdict(StrEnum):
    """Result of a check. A warning concerns speed or convenience; with a failure the server would not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` says what to do and is empty for passed checks."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Finding:
    """Return the finding of a passed check."""
    return Finding(name, Verdict.OK, found)


def warn(name: str, found: str, advice: str) -> Finding:
    """Return a finding that concerns speed or convenience."""
    return Finding(name, Verdict.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Finding:
    """Return a finding with which the server would not work."""
    return Finding(name, Verdict.FAIL, found, advice)


def failed(name: str, error: Exception) -> Finding:
    """Return the finding of an error, whose text may begin with a setting and may end with advice after `; `."""
    message, _, advice = str(error).partition("; ")
    setting, colon, problem = message.partition(": ")
    if colon and setting in Settings.model_fields:
        return fail(name, problem, f"{spelled(setting)}: {advice or 'correct it, or leave it out'}")
    return fail(name, f"{type(error).__name__}: {message}", advice or "correct this, then run `tutti doctor` again")


Check = Callable[[Settings], Iterator[Finding]]


def examine(settings: Settings, checks: Sequence[Check], show: Callable[[Finding], None]) -> bool:
    """Run the checks in order and pass each finding to `show` at once; return whether none failed.

    A check that raises counts as failed, and the next one runs.
    """
    well = True
    for check in checks:
        try:
            for finding in check(settings):
                show(finding)
                well = well and finding.verdict is not Verdict.FAIL
        except Exception as error:  # noqa: BLE001 - any error of a check is a finding
            show(failed(check.__name__.replace("_", " "), error))
            well = False
    return well


def line(finding: Finding) -> str:
    """Return a finding as text: the verdict, then the advice on its own line."""
    text = f"{finding.verdict:<4}  {finding.name}: {finding.found}"
    return f"{text}\n      → {finding.advice}" if finding.advice else text


def document(findings: Sequence[Finding], *, well: bool) -> str:
    """Return all findings as one line of JSON."""
    return json.dumps({"ok": well, "checks": [asdict(finding) for finding in findings]}, ensure_ascii=False)
