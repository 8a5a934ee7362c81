"""The chart as Helm's own Go code renders it, from the package helm-python-sdk.

`python -m deploy.helm.render` writes the chart with its default values, for `kubectl apply` without Helm; a test checks
that the file is current.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHART = HERE / "tutti"
TARGET = HERE.parent / "kubernetes" / "tutti.yaml"
RELEASE, NAMESPACE = "tutti", "speech"
HEAD = """# The chart deploy/helm/tutti with its default values, for `kubectl apply` without Helm: put your image in it.
# Written by `python -m deploy.helm.render`.
"""


def render(
    values: Mapping[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
) -> str:
    """Return all manifests of a chart, a folder or an archive, in the order of its files. Raises: HelmError."""
    import helm_python

    with helm_python.Chart.load(str(chart)) as loaded:
        loaded.validate_schema(dict(values))
        found = loaded.render(dict(values), name=release, namespace=namespace)
    texts = (text.strip().removeprefix("---").strip() for path, text in sorted(found.items()) if path.endswith(".yaml"))
    return "".join(f"---\n{text}\n" for text in texts if text)


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(HEAD + render({}), encoding="utf-8")
