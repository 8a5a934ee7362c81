"""Check of WebSocket frames against the schemas of `server/asyncapi.yaml`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FILE = Path(__file__).parents[3] / "server" / "asyncapi.yaml"
Frame = dict[str, Any]


class AsyncApiDocument:
    """The document; `seen` collects the schemas that frames were checked against."""

    def __init__(self, text: str | None = None) -> None:
        self.content = yaml.safe_load(text or FILE.read_text())
        self.schemas = self.content["components"]["schemas"]
        self.seen: set[str] = set()

    def messages(self, operation: str) -> set[str]:
        """Names of the messages of an operation."""
        return {item["$ref"].rsplit("/", 1)[1] for item in self.content["operations"][operation]["messages"]}

    def types(self, operation: str) -> set[str]:
        """Return the valid values of `type` in the JSON frames of one direction of `/v1/listen`."""
        names = {name[0].upper() + name[1:] for name in self.messages(operation)} - {"Audio"}
        assert all(self.schemas[name]["properties"]["type"]["const"] == name for name in names)
        return names

    def check(self, operation: str, text: str | bytes | Frame) -> Frame:
        """Check a frame of `/v1/listen` and return it. Raises: jsonschema's ValidationError, AssertionError."""
        frame: Frame = text if isinstance(text, dict) else json.loads(text)
        assert frame["type"] in self.types(operation), frame
        self.validate(frame["type"], frame)
        return frame

    def validate(self, schema: str, frame: Any) -> None:
        """Check a frame against a schema. Raises: jsonschema's ValidationError."""
        self.seen.add(schema)
        whole = {"$ref": f"#/components/schemas/{schema}", "components": self.content["components"]}
        jsonschema.validate(
            frame, whole, jsonschema.Draft202012Validator, format_checker=jsonschema.FormatChecker(["uuid"])
        )
