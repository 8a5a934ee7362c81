"""Frames of sockets against `server/asyncapi.yaml`: which message a frame is, and whether it fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FILE = Path(__file__).parents[2] / "server" / "asyncapi.yaml"
Frame = dict[str, Any]


class Described:
    """The document, and frames held against it."""

    def __init__(self, text: str | None = None) -> None:
        self.document = yaml.safe_load(text or FILE.read_text())
        self.schemas = self.document["components"]["schemas"]
        self.seen: set[str] = set()

    def messages(self, operation: str) -> set[str]:
        """Names of the messages of an operation."""
        return {item["$ref"].rsplit("/", 1)[1] for item in self.document["operations"][operation]["messages"]}

    def types(self, operation: str) -> set[str]:
        """What `type` may be in the JSON frames of one direction of `/v1/listen`."""
        names = {name[0].upper() + name[1:] for name in self.messages(operation)} - {"Audio"}
        assert all(self.schemas[name]["properties"]["type"]["const"] == name for name in names)
        return names

    def check(self, operation: str, text: str | bytes | Frame) -> Frame:
        """Return a frame of `/v1/listen` that fits. Raises: jsonschema's ValidationError, AssertionError."""
        frame: Frame = text if isinstance(text, dict) else json.loads(text)
        assert frame["type"] in self.types(operation), frame
        self.fits(frame["type"], frame)
        return frame

    def fits(self, schema: str, frame: Any) -> None:
        """Raises: jsonschema's ValidationError."""
        self.seen.add(schema)
        whole = {"$ref": f"#/components/schemas/{schema}", "components": self.document["components"]}
        jsonschema.validate(
            frame, whole, jsonschema.Draft202012Validator, format_checker=jsonschema.FormatChecker(["uuid"])
        )
