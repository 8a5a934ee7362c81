"""Generator of the chart's schema of values, from its values.yaml and the settings of the server.

`python -m tests.support.deployment.chart_schema` writes it; a test checks that it is
current. A value has the type of its default; a map that is empty by default may have any content.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from server.settings import Settings
from server.tools.settings_page import meanings
from tests.support.audio.speech import ROOT

CHART = ROOT / "deploy" / "helm" / "tutti"
TARGET = CHART / "values.schema.json"
KEY_FILES = ("api_keys", "resume_keys", "token_keys", "admin_keys", "receipt_key")
CHART_SETS = {
    *("host", "port", "commit", "twilio_auth_token", "callback_secret"),
    *KEY_FILES,
    *(f"{name}_file" for name in KEY_FILES),
}
COUNT = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]}
CHOICES: dict[str, dict[str, Any]] = {
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.digest": {"pattern": "^(sha256:[0-9a-f]{64})?$"},
    "keys.files": {"items": {"enum": list(KEY_FILES)}, "uniqueItems": True},
    "keys.contents": {
        "propertyNames": {"enum": list(KEY_FILES)},
        "additionalProperties": {"type": "array", "minItems": 1},
    },
    "model.name": {"pattern": "^([A-Za-z0-9][A-Za-z0-9._-]*)?$"},
    "model.from": {"enum": ["claim", "job", "init", "image"]},
    "autoscaling.by": {"enum": ["", "hpa", "keda"]},
    "autoscaling.fill": {"exclusiveMinimum": 0, "maximum": 1},
    "autoscaling.minReplicas": {"minimum": 1},
    "replicas": {"minimum": 0},
    "preStopSeconds": {"minimum": 0},
    "files": {"propertyNames": {"pattern": "^[-._a-zA-Z0-9]+$"}, "additionalProperties": {"type": "string"}},
    "podDisruptionBudget": {
        "properties": {"minAvailable": COUNT, "maxUnavailable": COUNT},
        "additionalProperties": False,
        "maxProperties": 1,
    },
    "surge.maxUnavailable": COUNT,
    "surge.maxSurge": COUNT,
}
OPEN = {"resources", "nodeSelector"}  # objects of Kubernetes, which checks them
PORT = {"type": "integer", "minimum": 1, "maximum": 65_535, "not": {"enum": [80, 8080]}}  # those of HTTP are taken
OF_SETTINGS: dict[str, dict[str, Any]] = {
    "vosk_port": PORT,
    "metrics_port": {"anyOf": [PORT, {"type": "null"}]},
    "model": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    "usage_log": {"type": "string", "pattern": "^/"},
}
"""Settings of which the chart takes other values than the server."""
Schema = dict[str, Any]


def build() -> str:
    """Return the schema as text."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    root = _of_value("", values)
    root["properties"]["settings"] = _of_settings()
    root["properties"]["global"] = {"type": "object"}  # Helm adds it where the chart is part of another
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart tutti"}
    return json.dumps(head | root, indent=2, ensure_ascii=False) + "\n"


def _of_value(path: str, value: object) -> Schema:
    """Return the schema of a value, by its default."""
    found: Schema
    if isinstance(value, dict):
        found = {"type": "object"}
        if value and path not in OPEN:
            parts = {name: _of_value(f"{path}.{name}".strip("."), each) for name, each in value.items()}
            found |= {"additionalProperties": False, "properties": parts}
    elif isinstance(value, list):
        found = {"type": "array"}
    elif isinstance(value, bool):
        found = {"type": "boolean"}
    elif isinstance(value, int):
        found = {"type": "integer"}
    elif isinstance(value, float):
        found = {"type": "number"}
    else:
        found = {"type": "string"}
    if "anyOf" in CHOICES.get(path, {}):
        return CHOICES[path]
    return found | CHOICES.get(path, {})


def _of_settings() -> Schema:
    """Return the schema of `settings`: all but those that the chart sets, and keys, which are in a secret."""
    described = Settings.model_json_schema(mode="validation")
    said = meanings()
    properties = {
        name: {"description": said[name][1], **OF_SETTINGS.get(name, _plain(described["properties"][name]))}
        for name in Settings.model_fields
        if name not in CHART_SETS
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(schema: Any) -> Any:
    """Return a schema without what only Python uses; a table of models has any content."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"type": "object"}
    return {name: _plain(each) for name, each in schema.items() if name not in ("title", "default", "format")}


if __name__ == "__main__":
    TARGET.write_text(build(), encoding="utf-8")
