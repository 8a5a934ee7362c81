"""What settings mean, from `server/settings.py`, for help texts and for `docs/settings.md`, whose generator this is.

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


def meanings() -> dict[str, tuple[str, str]]:
    """Return, for each setting, the heading comment above it ("" if none) and its docstring in one line."""
    source = Path(settings.__file__).read_text(encoding="utf-8")
    [settings_class] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    lines, texts = source.splitlines(), {}
    for field, text in zip(settings_class.body, settings_class.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{field.target.id} has a docstring"
            above = re.fullmatch(r"    # (.*)", lines[field.lineno - 3])
            texts[field.target.id] = (above[1] if above else "", " ".join(ast.literal_eval(text.value).split()))
    return texts


def page() -> str:
    """Return the whole page."""
    texts, lines = meanings(), [HEAD]
    for name, field in Settings.model_fields.items():
        heading, meaning = texts[name]
        if heading:
            lines += [f"\n## {heading}\n", "| variable | option | default | meaning |", "|---|---|---|---|"]
        option = f"`--{name.replace('_', '-')}`" if name in OPTIONS else ""
        lines.append(f"| `{PREFIX}{name.upper()}` | {option} | {_default(field)} | {meaning} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


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
