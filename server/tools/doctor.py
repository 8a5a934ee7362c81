"""Findings of `tutti doctor` on installation, machine and model: how checks run and how they are shown. Read-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from server.settings import Settings


class Verdict(StrEnum):
    """Result of a check. A warning costs speed or comfort; a failure means that serving would go wrong."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` says what to do, and is empty where nothing needs doing."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Finding:
    """A finding with nothing to mend."""
    return Finding(name, Verdict.OK, found)


def warn(name: str, found: str, advice: str) -> Finding:
    """A finding that costs speed or comfort."""
    return Finding(name, Verdict.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Finding:
    """A finding that keeps the server from working."""
    return Finding(name, Verdict.FAIL, found, advice)


Check = Callable[[Settings], Iterator[Finding]]


def examine(settings: Settings, checks: Sequence[Check], tell: Callable[[Finding], None]) -> bool:
    """Run the checks in their order and tell each finding at once; return whether none failed.

    A check that cannot be carried out has failed, and the others go on.
    """
    well = True
    for check in checks:
        try:
            for finding in check(settings):
                tell(finding)
                well = well and finding.verdict is not Verdict.FAIL
        except Exception as error:  # noqa: BLE001 - a doctor has to survive whatever the patient has
            tell(
                fail(check.__name__.replace("_", " "), f"{type(error).__name__}: {error}", "mend this, and look again")
            )
            well = False
    return well


def line(finding: Finding) -> str:
    """A finding as text: the verdict, then the advice on a line of its own."""
    text = f"{finding.verdict:<4}  {finding.name}: {finding.found}"
    return f"{text}\n      → {finding.advice}" if finding.advice else text


def document(findings: Sequence[Finding], *, well: bool) -> str:
    """All findings as one line of JSON."""
    return json.dumps({"ok": well, "checks": [asdict(finding) for finding in findings]}, ensure_ascii=False)
