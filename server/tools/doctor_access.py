"""Checks of keys, allowed origins, the models file, written forms and the usage log, for `tutti doctor`. Read-only."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Iterator

from model.errors import ModelError
from server.access.origins import allowed_origins
from server.configuration.variables import spelled
from server.errors import SettingsError
from server.http.admin import admin_access
from server.models.registry import outlines_of
from server.models.service import resume_keys
from server.operations.start_message import said_of_admin, said_of_keys
from server.replica import client_keys
from server.settings import Settings
from server.text.own_forms import own_forms_of
from server.tools.doctor import Check, Finding, fail, misset, ok, warn
from server.usage.log import PATTERN


def keys(settings: Settings) -> Iterator[Finding]:
    """Check keys of clients, operators, tokens and tickets, and allowed origins; reads each file."""
    found = list(_misset(settings))
    yield from found
    if found:
        return
    summary = said_of_keys(settings)
    if settings.api_keys or settings.api_keys_file is not None or _is_local(settings.host):
        yield ok("keys", summary)
    else:
        yield warn(
            "keys", summary, f"set {spelled('api_keys')} or {spelled('api_keys_file')}, unless the network is private"
        )
    yield ok("admin", said_of_admin(settings))


def _misset(settings: Settings) -> Iterator[Finding]:
    readers: dict[str, Callable[[], object]] = {
        "keys of clients": lambda: client_keys(settings, time.monotonic),
        "keys of tickets": lambda: resume_keys(settings),
        "keys of operators": lambda: admin_access(settings),
        "origins": lambda: allowed_origins(settings),
    }
    for name, read in readers.items():
        try:
            read()
        except SettingsError as error:
            yield misset(name, error)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def models_file(settings: Settings) -> Iterator[Finding]:
    """Check the models file; whether each model can be loaded is checked by `doctor_model`."""
    if settings.models_file is None:
        return
    try:
        yield ok("models file", f"{len(outlines_of(settings))} models in {settings.models_file}")
    except SettingsError as error:
        yield misset("models file", error)
    except ModelError:  # reported by doctor_model, with the model's name
        return


def written_forms(settings: Settings) -> Iterator[Finding]:
    """Check the file of the operator's own written forms, if one is set."""
    if settings.written_forms is None:
        return
    try:
        yield ok("written forms", f"{len(own_forms_of(settings.written_forms)):,} phrases in {settings.written_forms}")
    except SettingsError as error:
        yield misset("written forms", error)


def usage_log(settings: Settings) -> Iterator[Finding]:
    """Check the folder of usage records, if one is set."""
    folder, name = settings.usage_log, "usage log"
    if folder is None:
        return
    if not folder.exists():
        yield ok(name, f"{folder} will be created")
    elif not folder.is_dir():
        yield fail(name, f"{folder} is not a folder", f"correct {spelled('usage_log')}")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield fail(name, f"cannot write to the folder {folder}", "check its permissions")
    else:
        sizes = [path.stat().st_size for path in folder.glob(PATTERN)]
        yield ok(name, f"{folder} has {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB")


CHECKS: tuple[Check, ...] = (keys, models_file, written_forms, usage_log)
