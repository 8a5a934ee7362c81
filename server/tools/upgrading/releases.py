"""Records of releases and of this tree: settings with defaults, metrics, query parameters, version of tickets.

`python -m server.tools.upgrading.releases VERSION COMMIT` adds the record of this tree to `releases.json`.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import to_jsonable_python

from server.operations.key_metrics import KeyMetrics
from server.operations.metrics import Metrics
from server.protocols.deepgram.parameters import PARAMETERS
from server.resume.tickets import VERSION
from server.settings import Settings

NAME = "releases.json"
OWN_METRICS = "tutti_"
CREATED = "_created"  # a second series of each counter, which 0.1.0 had
BUCKET = "le"  # label of every histogram


class MetricForm(msgspec.Struct, frozen=True):
    """Type of a metric, and its labels: None if it has no series before the first stream."""

    type: str
    labels: list[str] | None


class Release(msgspec.Struct, frozen=True):
    """What an operator or a client can depend on. `metrics`: by name. `ticket`: None if it issues no tickets."""

    commit: str
    ticket: int | None
    settings: dict[str, Any]  # default by name
    metrics: dict[str, MetricForm]
    parameters: list[str]  # of /v1/listen


def releases() -> dict[str, Release]:
    """Return the recorded releases by version, the oldest first."""
    return msgspec.json.decode(files(__package__).joinpath(NAME).read_bytes(), type=dict[str, Release])


def this_tree(commit: str = "") -> Release:
    """Return the record of the running code."""
    fields = Settings.model_fields.items()
    defaults = {name: to_jsonable_python(field.get_default(call_default_factory=True)) for name, field in fields}
    return Release(commit, VERSION, defaults, _metrics(), [parameter.name for parameter in PARAMETERS])


def metric_forms(exposition: str) -> dict[str, MetricForm]:
    """Return the form of each metric of ours in the Prometheus text format, by the name that queries use."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        if family.name.startswith(OWN_METRICS) and not family.name.endswith(CREATED):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {BUCKET}
            found[name] = MetricForm(family.type, sorted(labels) if family.samples else None)
    return found


def _metrics() -> dict[str, MetricForm]:
    metrics = Metrics(max_batch=1, max_streams=1)
    metrics.of_model("any")
    metrics.build_info.labels("", "", "", "")
    KeyMetrics(metrics.registry, 1).began("any")
    return metric_forms(metrics.exposition().decode())


def main() -> None:
    """Add the record of this tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("commit")
    asked = parser.parse_args()
    found = releases() | {asked.version: this_tree(asked.commit)}
    Path(str(files(__package__).joinpath(NAME))).write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")


if __name__ == "__main__":
    main()
