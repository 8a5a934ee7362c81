"""How many processes a server has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.machine.runtime import usable_cores
from server.processes import layout
from server.settings import Settings


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without a GPU, whatever this one has."""
    monkeypatch.setattr(layout, "GPU_DEVICE", tmp_path / "none")
    return monkeypatch


@pytest.mark.parametrize(("cores", "front_ends", "threads"), [(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 2, 1), (8, 4, 3)])
def test_the_default_follows_the_cores(machine: pytest.MonkeyPatch, cores: int, front_ends: int, threads: int) -> None:
    machine.setattr(layout, "usable_cores", lambda: cores)
    found, settings = layout.processes_of(Settings(front_ends="auto"))
    assert (found, settings.threads, settings.front_ends) == (front_ends, threads, front_ends)


def test_what_is_set_is_kept(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(layout, "usable_cores", lambda: 8)
    assert layout.processes_of(Settings(front_ends=0))[0] == 0
    found, settings = layout.processes_of(Settings(front_ends=2))
    assert (found, settings.threads) == (2, 5)
    assert layout.processes_of(Settings(front_ends=2, threads=3))[1].threads == 3
    machine.setattr(layout, "usable_cores", lambda: 2)
    assert layout.processes_of(Settings(front_ends=3))[1].threads == 1


def test_a_gpu_leaves_more_cores_to_front_ends(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(layout, "usable_cores", lambda: 16)
    assert (
        layout.processes_of(Settings(device="cuda", front_ends="auto"))[0]
        > layout.processes_of(Settings(front_ends="auto"))[0]
    )


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("50000 100000", 1), ("", None), ("x y", None)])
def test_a_quota_limits_the_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    """A container of half a core on a large machine must not start processes for the machine."""
    file = tmp_path / "cpu.max"
    file.write_text(text, encoding="ascii")
    assert usable_cores(file) == (usable_cores(tmp_path / "absent") if cores is None else cores)


@pytest.mark.parametrize(("front_ends", "uploads"), [("auto", 4), (0, 4), (2, 2), (3, 2), (8, 1)])
def test_front_ends_share_the_places_of_uploads(front_ends: Any, uploads: int) -> None:
    assert Settings(max_uploads=4, front_ends=front_ends).uploads_here == uploads
