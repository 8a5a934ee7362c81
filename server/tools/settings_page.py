"""Generator of `docs/settings.md`: each setting's variable, option, default and meaning, from `server/settings.py`.

`python -m server.tools.settings_page` writes the page; a test checks that it is current.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from server import settings
from server.configuration.variables import OPTIONS, PREFIX
from server.settings import Settings

PAGE = Path(settings.__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Each setting is a variable; some are options of `tutti serve` too, and an option wins over its variable. An empty
variable counts as not set, an unknown `TUTTI_…` variable is refused. Lists are separated by commas, spaces or new
lines, or are JSON. `tutti doctor` takes the same options and variables, and checks them without serving.

Written by `python -m server.tools.settings_page` from `server/settings.py`.
"""


def page() -> str:
    """Return the whole page."""
    source = Path(settings.__file__).read_text(encoding="utf-8")
    found, lines = meanings(source), [HEAD]
    for name, field in Settings.model_fields.items():
        heading, meaning = found[name]
        if heading:
            lines += [f"\n## {heading}\n", "| variable | option | default | meaning |", "|---|---|---|---|"]
        option = f"`--{name.replace('_', '-')}`" if name in OPTIONS else ""
        lines.append(f"| `{PREFIX}{name.upper()}` | {option} | {_default(field)} | {meaning} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def meanings(source: str) -> dict[str, tuple[str, str]]:
    """Return, for each setting, the heading comment above it ("" if none) and its docstring in one line."""
    [settings_class] = [each for each in ast.parse(source).body if getattr(each, "name", "") == Settings.__name__]
    assert isinstance(settings_class, ast.ClassDef), "the settings are a class"
    lines, found = source.splitlines(), {}
    for field, text in zip(settings_class.body, settings_class.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(text, ast.Expr), f"{field.target.id} has a docstring"
        above = re.fullmatch(r"    # (.*)", lines[field.lineno - 3])
        found[field.target.id] = (above[1] if above else "", " ".join(ast.literal_eval(text.value).split()))
    return found


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default in (None, (), PydanticUndefined):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, dict):
        return f"`{json.dumps(default)}`"
    return f"{default:g}" if isinstance(default, float) and default < 1e6 else str(default)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
