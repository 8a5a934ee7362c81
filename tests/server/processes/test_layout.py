"""How many processes a server has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.errors import SettingsError
from server.processes import layout
from server.settings import Settings

FOLDER = Path(__file__).parent  # as that of a published model


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without a GPU, whatever this one has."""
    monkeypatch.setattr(layout, "GPU_DEVICE", tmp_path / "none")
    return monkeypatch


def found(**settings: Any) -> tuple[Any, Any, int]:
    chosen = layout.with_processes(Settings(**({"front_ends": "auto"} | settings)))
    return chosen.front_ends, chosen.engines, chosen.threads


@pytest.mark.parametrize(
    ("cores", "settings", "expected"),
    [
        (3, {}, (0, 1, 2)),
        (16, {}, (5, 2, 5)),
        (16, {"model": "tutti-fast"}, (5, 2, 5)),
        (16, {"model": "tutti-gru"}, (9, 2, 3)),
        (16, {"model": "no-such-model"}, (9, 2, 3)),
        (8, {"front_ends": 0}, (0, 1, 7)),
        (8, {"front_ends": 2, "threads": 3}, (2, 1, 3)),
        (8, {"front_ends": 2, "engines": 2}, (2, 2, 2)),
        (2, {"front_ends": 3}, (3, 1, 1)),
        (16, {"model": FOLDER}, (2, 1, 13)),
        (16, {"model": FOLDER, "max_batch": 8}, (1, 1, 2)),
        (16, {"models": [{"name": "one", "path": FOLDER}, {"name": "two", "path": "tutti-gru"}]}, (2, 1, 13)),
        (16, {"model": "tutti-gru", "device": "cuda"}, (13, 1, 1)),
        (16, {"model": "tutti-gru", "device": "cuda", "engines": 1}, (13, 1, 1)),
    ],
)
def test_what_is_set_is_kept_and_the_rest_follows_cores_model_and_batch(
    machine: pytest.MonkeyPatch, cores: int, settings: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    machine.setattr(layout, "usable_cores", lambda: cores)
    assert found(**settings) == expected


@pytest.mark.parametrize(
    ("name", "megabytes", "threads"),
    [("encoder.int8.onnx", 600, 2), ("encoder.weights", 2_400, 2), ("encoder.onnx", 440, 1), ("notes.txt", 2_400, 1)],
)
def test_a_large_published_model_uses_both_of_two_cores(
    machine: pytest.MonkeyPatch, tmp_path: Path, name: str, megabytes: int, threads: int
) -> None:
    machine.setattr(layout, "usable_cores", lambda: 2)
    (tmp_path / "encoder.onnx").touch()
    with (tmp_path / name).open("wb") as file:
        file.truncate(megabytes * 1_000_000)  # sparse
    assert found(model=tmp_path) == found(model=tmp_path / "encoder.onnx") == (0, 1, threads)
    assert found(model=tmp_path, threads=1) == (0, 1, 1)


@pytest.mark.parametrize(("front_ends", "timeout_s"), [(2, 2.0), (0, 12.0)])
def test_a_hung_engine_is_replaced_before_its_streams_end(front_ends: int, timeout_s: float) -> None:
    assert Settings(front_ends=front_ends, stall_timeout_s=6.0).engine_timeout_s == timeout_s


@pytest.mark.parametrize(("front_ends", "advice"), [(0, "need --front-ends"), (2, "need at least 3 front ends")])
def test_each_engine_needs_a_front_end(machine: pytest.MonkeyPatch, front_ends: int, advice: str) -> None:
    machine.setattr(layout, "usable_cores", lambda: 8)
    with pytest.raises(SettingsError, match=f"engines: 3 engines {advice}"):
        found(front_ends=front_ends, engines=3)


def test_a_gpu_has_one_engine(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(layout, "usable_cores", lambda: 16)
    with pytest.raises(SettingsError, match="engines: a GPU has one engine, not 2"):
        found(model="tutti-gru", device="cuda", engines=2)


def test_a_network_with_attention_has_the_processors_cores_also_next_to_a_gpu(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The GPU does not run it; one thread of an engine would carry a tenth."""
    machine.setattr(layout, "usable_cores", lambda: 16)
    (tmp_path / "none").touch()
    assert found() == (5, 2, 5)
    assert found(model="tutti-gru") == (13, 1, 1)


@pytest.mark.parametrize(("front_ends", "uploads"), [("auto", 4), (0, 4), (2, 2), (3, 2), (8, 1)])
def test_front_ends_share_the_places_of_uploads(front_ends: Any, uploads: int) -> None:
    assert Settings(max_uploads=4, front_ends=front_ends).uploads_here == uploads
