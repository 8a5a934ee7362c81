"""What a test needs from the machine: without it the test is skipped. In CI it fails, if the need can be installed."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any, NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """End the test, or the module that asks while it is loaded, for want of something."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)


def need_programs(*names: str) -> None:
    """Look for programs on the path."""
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        missing(f"{' and '.join(absent)} not installed")


def need_package(name: str) -> Any:
    """Import a package of an extra that the tests are installed with."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"{name} not installed")


def need_precision(precision: str) -> None:
    """Skip the test where the processor lacks the precision, in CI too: no installation adds instructions to it."""
    import torch

    from model.errors import PrecisionError
    from model.precision import resolve_precision

    try:
        resolve_precision(precision, torch.device("cpu"))
    except PrecisionError as error:
        pytest.skip(str(error))
