"""Findings of `tutti doctor` on installation, machine and model: how checks run and how they are shown. Read-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from server.configuration.variables import spelled
from server.errors import SettingsError
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


MENDS = {
    "admin_keys_file": "a file to which `tutti keys new --file` has written",
    "allowed_origins": "origins of pages such as https://example.org",
    "api_keys_file": "a file to which `tutti keys new --file` has written",
    "models_file": "tables [[model]], as docs/models.md has them",
    "resume_keys": "keys that `tutti keys resume` makes",
    "resume_keys_file": "keys that `tutti keys resume` makes, one a line",
    "token_keys": "texts of 32 bytes or more",
    "token_keys_file": "a text of 32 bytes or more a line",
}
"""What a setting takes, for the advice on a value that cannot be applied."""


def misset(name: str, error: SettingsError) -> Finding:
    """The finding of a setting that cannot be applied; the error begins with its name."""
    setting, _, problem = str(error).partition(": ")
    return fail(name, problem, f"correct {spelled(setting)}: {MENDS.get(setting, 'or leave it out')}")


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
        except SettingsError as error:
            tell(misset(check.__name__.replace("_", " "), error))
            well = False
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
