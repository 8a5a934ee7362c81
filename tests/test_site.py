"""The documentation site: it resolves links within it and into the repository, and a dead link fails its build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.needs import need_package

ROOT = Path(__file__).parents[1]
PLANTED = """
[one](faults.md#drain), [two](../ARCHITECTURE.md), [three](../server/app.py), [four
lines](decisions/README.md), [five](nothing.md), [six](../server/nothing.py), [seven](faults.md#nothing)

```json made.json
{"a": "[eight](nothing.md)"}
```
"""


def test_links_are_resolved_and_dead_ones_fail_the_build(tmp_path: Path) -> None:
    need_package("mkdocs")
    checkout = tmp_path / "checkout"
    (checkout / "docs").mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in {"docs", "build", ".git"}:
            (checkout / path.name).symlink_to(path)
    for path in (ROOT / "docs").iterdir():
        if path.name != "privacy.md":
            (checkout / "docs" / path.name).symlink_to(path)
    (checkout / "docs" / "privacy.md").write_text((ROOT / "docs/privacy.md").read_text(encoding="utf-8") + PLANTED)
    # mkdocs resolves the symbolic link of its configuration, so that one is a copy.
    (checkout / "mkdocs.yml").unlink()
    (checkout / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=checkout,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.findall(r"WARNING .*'privacy\.md' contains a link '([^']*)'", done.stderr) == [
        "nothing.md",
        "../server/nothing.py",
        "faults.md#nothing",
    ]
    assert "Aborted with 3 warnings" in done.stderr + done.stdout
    page = (site / "privacy.html").read_text(encoding="utf-8")
    for address in ("faults.html#drain", "architecture.html", "decisions/index.html"):
        assert f'href="{address}"' in page
    assert "three (<code>server/app.py</code>)" in page
    assert "made.json" in page
    assert "[eight](nothing.md)" in page


def test_every_page_is_once_in_the_navigation_and_in_the_index() -> None:
    nav, index = (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), (ROOT / "docs" / "README.md").read_text("utf-8")
    for name in {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}:
        assert (nav.count(f"- {name}"), f"({name}" in index) == (1, True), name
