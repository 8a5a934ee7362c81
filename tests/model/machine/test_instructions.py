"""The switches that emulate an older processor apply to torch, oneDNN and compiled code, also in these tests."""

from __future__ import annotations

import os

import pytest
import torch
from numba.core.registry import cpu_target

from model.machine import instructions
from model.machine.precision import multiplies_bf16, native_bf16
from tests.support.processors import AVX2, has, is_x86


def test_this_run_uses_the_processor_level_of_its_variables() -> None:
    """If one of the two is set, both are, and torch, oneDNN and numba all obey them."""
    compiles_for = cpu_target.target_context.codegen().magic_tuple()[1]
    capability = torch.backends.cpu.get_cpu_capability()
    if any(os.environ.get(name, "").lower() == value.lower() for name, value in AVX2.items()):  # of `make test-avx2`
        assert is_x86(), "the variables change nothing on this processor: run `make test` alone"
        assert has("avx2"), "this processor lacks AVX2: run `make test` alone"
        assert {name: os.environ.get(name) for name in AVX2} == AVX2
        assert (capability, compiles_for, instructions.instruction_set()) == ("AVX2", "x86-64-v3", "avx2")
        assert (multiplies_bf16(), native_bf16()) == (False, False)
    elif is_x86() and not {"NUMBA_CPU_NAME", *AVX2} & set(os.environ):
        assert compiles_for == instructions.binding.get_host_cpu_name()
        assert (instructions.instruction_set() == "vnni512") == (has("avx512vnni") and has("avx512bw"))
        assert (capability == "AVX512") == (has("avx512f") and has("avx512dq") and has("avx512bw") and has("avx512vl"))


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, None),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, None),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "x86-64-v3"),
        ({"ONEDNN_MAX_CPU_ISA": "avx2"}, "x86-64-v3"),
        ({"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"}, "x86-64"),
        ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, "x86-64"),
    ],
)
def test_code_is_compiled_for_the_lowest_level_in_the_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], level: str | None
) -> None:
    monkeypatch.setattr(instructions, "is_x86", lambda: True)
    monkeypatch.setattr(instructions, "_has", lambda _: True)
    monkeypatch.setattr(instructions._config, "CPU_NAME", None)
    monkeypatch.setattr(instructions._config, "CPU_FEATURES", None)
    instructions.limit_instructions(variables)
    assert level == instructions._config.CPU_NAME
    assert (None if level is None else "") == instructions._config.CPU_FEATURES


def test_no_avx2_code_is_compiled_for_a_processor_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "is_x86", lambda: True)
    monkeypatch.setattr(instructions, "_has", lambda _: False)
    monkeypatch.setattr(instructions._config, "CPU_NAME", None)
    monkeypatch.setattr(instructions._config, "CPU_FEATURES", None)
    instructions.limit_instructions(AVX2)
    assert instructions._config.CPU_NAME == "x86-64"


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", {"avx2", "avx512bw", "avx512vnni", "avxvnni"}, "vnni512"),
        ("x86_64", {"avx2", "avxvnni"}, "vnni256"),
        ("x86_64", {"avx2", "avx512bw"}, "avx2"),
        ("x86_64", set(), "portable"),
        ("aarch64", set(), "portable"),
    ],
)
def test_the_fastest_byte_product_depends_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, machine: str, features: set[str], expected: str
) -> None:
    monkeypatch.setattr(instructions.platform, "machine", lambda: machine)
    monkeypatch.setattr(instructions, "_has", lambda feature: feature in features)
    monkeypatch.setattr(instructions._config, "CPU_NAME", None)
    monkeypatch.setattr(instructions, "limit_instructions", lambda: None)
    assert instructions.instruction_set.__wrapped__() == expected
