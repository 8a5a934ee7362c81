"""`docs/settings.md` is current and complete."""

from __future__ import annotations

from server.settings import Settings
from server.tools.settings_page import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m server.tools.settings_page`"


def test_every_setting_has_a_row_with_a_description() -> None:
    rows = {line.split("`")[1]: line.split(" | ") for line in page().splitlines() if line.startswith("| `TUTTI_")}
    assert set(rows) == {f"TUTTI_{name.upper()}" for name in Settings.model_fields}
    assert all(len(cells) == 4 and cells[3].rstrip(" |").endswith((".", ".py")) for cells in rows.values())
