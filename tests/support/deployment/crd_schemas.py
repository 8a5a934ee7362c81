"""Generator of `crd_schemas.json`: schemas of objects of the Gateway API and Envoy Gateway, from their CRDs.

`python -m tests.support.deployment.crd_schemas CRD.yaml…` writes it. Descriptions are left out; as in the API server's
strict mode, unknown fields are rejected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).with_name("crd_schemas.json")
KINDS = {"HTTPRoute": "v1", "BackendTrafficPolicy": "v1alpha1"}
SOURCES = {
    "HTTPRoute": "kubernetes-sigs/gateway-api, commit 4564255ac of 2026-08-21, standard channel",
    "BackendTrafficPolicy": "envoyproxy/gateway 1.9.0",
}


def build(paths: Sequence[Path]) -> str:
    """Return the file for these CRDs. Raises: ValueError: a kind is missing."""
    schemas = {}
    for path in paths:
        for crd in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            kind = crd["spec"]["names"]["kind"] if crd else ""
            for version in crd["spec"]["versions"] if kind in KINDS else ():
                if version["name"] == KINDS[kind]:
                    schemas[kind] = _strict(version["schema"]["openAPIV3Schema"], top=True)
    if missing := sorted(set(KINDS) - set(schemas)):
        raise ValueError(f"no CRD of {', '.join(missing)} in these files")
    return json.dumps({"sources": SOURCES, "schemas": schemas}, separators=(",", ":"), sort_keys=True) + "\n"


def _strict(schema: dict[str, Any], *, top: bool = False) -> dict[str, Any]:
    """Return an OpenAPI schema of a CRD as a JSON schema that rejects unknown fields."""
    kept = {
        name: each for name, each in schema.items() if name != "description" and not name.startswith("x-kubernetes")
    }
    if "x-kubernetes-int-or-string" in schema:
        kept.pop("type", None)
    for name in ("properties", "patternProperties"):
        if name in kept:
            kept[name] = {key: _strict(each) for key, each in kept[name].items()}
    if isinstance(kept.get("items"), dict):
        kept["items"] = _strict(kept["items"])
    if isinstance(kept.get("additionalProperties"), dict):
        kept["additionalProperties"] = _strict(kept["additionalProperties"])
    if "properties" in kept and "x-kubernetes-preserve-unknown-fields" not in schema:
        kept["additionalProperties"] = False
    if top:
        kept["properties"]["metadata"] = {"type": "object"}
    return kept


if __name__ == "__main__":
    TARGET.write_text(build([Path(each) for each in sys.argv[1:]]), encoding="utf-8")
