"""`TUTTI_…` variables: which names are known, and how the texts of lists are read."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

PREFIX = "TUTTI_"
OPTIONS = (
    "host", "port", "vosk_port", "wyoming_port", "audiosocket_port", "metrics_port", "model", "models_file", "device",
    "precision", "decoder", "beams", "lm", "grammars", "finals", "second_pass", "policy", "max_streams", "max_batch",
    "latency_budget_ms", "vad", "speakers", "voices", "turn_model", "rest_s", "threads", "front_ends", "engines",
    "unload_idle_minutes", "reproducible", "lenient_features", "admin_local", "api_keys_file", "resume_keys_file",
    "receipt_key_file", "written_forms", "idle_timeout_s", "drain_timeout_s", "log_level", "log_format",
)  # fmt: skip
"""Settings that are options of `tutti serve`, too."""
OTHERS = frozenset(
    f"{PREFIX}{name}"
    for name in ("API_KEY", "ADMIN_KEY", "CERT", "TLS_PORT", "STOP_GRACE", "STATEFUL_STEPS", "PEER_OPTIONS")
)
"""Variables that are no settings: of clients, compose files, and tests."""
SERVICE_LINK = re.compile(rf"{PREFIX}(?:[A-Z0-9_]+_)?(?:SERVICE_(?:HOST|PORT\w*)|PORT_\d+_(?:TCP|UDP)\w*)")
"""Variables that Kubernetes and Docker links add for a service that is called tutti. Source: Kubernetes, Service."""


def spelled(setting: str, value: object = "") -> str:
    """Return how an operator sets a setting, such as `--lm off (TUTTI_LM=off)`; without a value its names alone."""
    variable = f"{PREFIX}{setting}".upper() + (f"={value}" if value != "" else "")
    if setting not in OPTIONS:
        return variable
    return f"--{setting.replace('_', '-')} {value}".rstrip() + f" ({variable})"


def is_other(name: str) -> bool:
    """Whether a variable is known and no setting: of clients, or a link of Kubernetes."""
    return name.upper() in OTHERS or SERVICE_LINK.fullmatch(name.upper()) is not None


def check_names(names: Iterable[str], settings: Collection[str]) -> None:
    """Check that every `TUTTI_…` variable is known. Raises: ValueError that names the first one that is not."""
    known = {f"{PREFIX}{name}".upper() for name in settings}
    for name in sorted(names):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or is_other(name):
            continue
        close = get_close_matches(upper, sorted(known | OTHERS), n=1)
        advice = f"did you mean {close[0]}?" if close else "remove it (docs/settings.md lists the settings)"
        raise ValueError(f"{name[:60]}: not a setting; {advice}")


def listed(text: str) -> tuple[Any, ...]:
    """Return the items of a list: a JSON array, or texts separated by commas, spaces or new lines.

    Comments (from `#` to the end of a line) are left out. Raises: ValueError, which never holds the text.
    """
    if text.lstrip().startswith("["):
        try:
            return tuple(json.loads(text))
        except ValueError:
            raise ValueError("begins with [ but is not a JSON array") from None
    items = tuple(re.sub(r"(?m)(?:^|\s)#.*$", " ", text).replace(",", " ").split())
    if not items:  # of keys, it would open the server
        raise ValueError("must have an item, or be left out")
    return items
