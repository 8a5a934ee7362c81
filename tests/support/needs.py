"""Requirements of a test on the machine: where one is missing the test is skipped; in CI it fails, if installable."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip the test, or the module that is being imported; in CI fail it."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)


def need_programs(*names: str) -> None:
    """Skip or fail unless all these programs are on the path."""
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        missing(f"{' and '.join(absent)} not installed")


def need_root() -> None:
    """Skip or fail unless the tests run as root."""
    if os.geteuid() != 0:
        missing("not root")


def need_package(name: str) -> Any:
    """Import a package of an optional extra; skip or fail where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"{name} not installed")


def need_ipv6() -> None:
    """Skip the test where the machine has no IPv6, in CI too: containers often have none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")


def need_precision(precision: str) -> None:
    """Skip the test where the processor lacks the precision, in CI too: no installation adds instructions to it."""

    from model.errors import PrecisionError
    from model.machine.device import CPU
    from model.machine.precision import resolve_precision

    try:
        resolve_precision(precision, CPU, quantized=True)
    except PrecisionError as error:
        pytest.skip(str(error))


def need_instructions(way: str) -> None:
    """Skip the test where the processor, or the environment, lacks what a way of multiplying bytes uses."""
    from model.int8.product import WAYS
    from model.machine.instructions import instruction_set

    if list(WAYS).index(way) < list(WAYS).index(instruction_set()):
        pytest.skip(f"{way} products need instructions that this processor lacks")


def need_node_module(name: str, modules: Path) -> None:
    """Skip the test without the program; in CI it fails."""
    if shutil.which("node") and (modules / name).exists():
        return
    missing(f"no {name} for node; make it: python tests/ecosystem/environments.py node")
