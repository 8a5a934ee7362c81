"""The version of this tree, which stands in several files: read, compared, set.

`python -m deploy.release.versions` prints it, or an error if the files disagree; `… VERSION` writes it to all of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = {
    "pyproject.toml": r'(?m)^version = "([^"]+)"',
    "clients/pyproject.toml": r'(?m)^version = "([^"]+)"',
    "lab/pyproject.toml": r'(?m)^version = "([^"]+)"',
    "deploy/helm/tutti/Chart.yaml": r"(?m)^(?:version|appVersion): (\S+)",
    "deploy/home-assistant/config.yaml": r'(?m)^version: "([^"]+)"',
    "deploy/release/npm/package.json": r'"version": "([^"]+)"',
    **dict.fromkeys(
        ("docs/installing.md", "docs/sizing.md"), r"tutti(?:_asr|-asr-client)-(\d[^-\s]*?)(?:-py3-none-any\.whl|\.tgz)"
    ),
}
"""By file, where its version stands. deploy/kubernetes is rendered from the chart."""


def versions(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the versions in each file."""
    return {name: set(re.findall(form, (root / name).read_text(encoding="utf-8"))) for name, form in PLACES.items()}


def version(root: Path = ROOT) -> str:
    """Return the version. Raises: ValueError if a file has none, or another one."""
    found = versions(root)
    distinct = set().union(*found.values())
    if len(distinct) != 1 or not all(found.values()):
        listed = "; ".join(f"{name}: {', '.join(sorted(each)) or 'none'}" for name, each in found.items())
        raise ValueError(f"version: the files disagree ({listed}); run `python -m deploy.release.versions VERSION`")
    return distinct.pop()


def set_version(wanted: str, root: Path = ROOT) -> None:
    """Write a version to every file. Raises: ValueError if it is not a final version such as 0.2.0."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise ValueError(f"version: {wanted[:40]!r} must be three numbers such as 0.2.0, which pip, npm and Helm read")
    for name, form in PLACES.items():
        path = root / name
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(form, lambda found: found[0].replace(found[1], wanted), text), encoding="utf-8")


def main() -> None:
    """Print or set the version."""
    try:
        if len(sys.argv) > 1:
            set_version(sys.argv[1])
        print(version())  # noqa: T201
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
