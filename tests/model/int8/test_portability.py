"""The shipped 8-bit models: bit-identical log-probabilities, words and marks on every processor and in any batch.

The switches of `tests/support/processors.py` emulate older processors, each in its own process that reports what it
detects. `python -m model.evaluation.digest` prints the digest on any machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from model import checkpoint
from model.evaluation import digest
from model.moonshine.model import SHIPPED as SEGMENTS
from tests.support.audio.speech import ROOT
from tests.support.processors import AVX2, BASELINE, OLD_LIBRARIES, environment, has, is_x86

PROCESS = """
import ctypes, dataclasses, hashlib, json, sys
import numba
import numpy as np
import torch
from numba.core.registry import cpu_target
from model.acoustic import load_model, log_probs_of
from model.checkpoint import GRU, shipped_for
from model.ctc.search.logs import add_logs
from model.decoder import decoder_of, second_passes_of
from model.evaluation.digest import SAMPLES, digest_of, sample_recordings
from model.machine.instructions import instruction_set
from model.int8_model import Int8Model
from model.moonshine.model import Moonshine
from model.punctuation.tagger import shipped_tagger
from model.recordings import read_manifest, read_pcm

torch.set_num_threads(1)
model, gru = (load_model(path, device="cpu", precision="int8") for path in (None, GRU))
recordings = sample_recordings(model.config.sample_rate)
runs = [
    [each for i in range(0, len(recordings), n) for each in log_probs_of(model, recordings[i : i + n])]
    for n in json.loads(sys.argv[1])
]
digests, found = [digest_of(run) for run in runs], runs[-1]

def with_phones(network, count):  # a row of its head more for each phone, and for their blank
    head, more = network.products["head"], count + 1
    dice = np.random.default_rng(2)
    rows = dice.integers(-63, 64, (more, head.weight.shape[1]), dtype=np.int8)
    wider = dataclasses.replace(
        head,
        weight=np.concatenate([head.weight, rows]),
        scale=np.concatenate([head.scale, np.resize(head.scale, more)]),
        bias=np.concatenate([head.bias, dice.normal(size=more).astype(np.float32)]),
    )
    config = dataclasses.replace(network.config, phones=tuple(map(str, range(count))))
    return dataclasses.replace(network, config=config, products={**network.products, "head": wider})

phones = Int8Model(with_phones(gru.network, 41), "")
decoded = hashlib.sha256()
for name in ("beam", "greedy"):
    decoder = decoder_of(model.facts, decoder=name)
    for rows in found:
        state = decoder.start(model.config.lookahead)
        decoder.advance([state], rows[None])
        decoded.update(repr(decoder.words(state)).encode())
        decoded.update(decoder.save(state))

accurate = second_passes_of(model.facts, decoder_of(model.facts))["accurate"]
texts = [each.text for each in read_manifest(SAMPLES)]

def taken(rows):
    state = accurate.second.start(model.config.lookahead)
    accurate.second.advance([state], rows[None])
    return accurate.second.take(state)

mandarin = load_model(shipped_for("zh"), device="cpu", precision="int8")
spoken = [read_pcm(one.audio) for one in read_manifest(SAMPLES.with_name("mandarin.jsonl"))]
search = decoder_of(mandarin.facts)

def words_of(rows):
    state = search.start(mandarin.config.lookahead)
    search.advance([state], rows[None])
    return search.words(state)

@numba.njit
def sums(a, b, own, library):
    for i in range(len(a)):
        own[i] = add_logs(a[i], a[i] - b[i])
        library[i] = a[i] + np.log1p(np.exp(-b[i]))

dice = np.random.default_rng(1)
a, b, own, library = -dice.exponential(9, 200_000), dice.exponential(3, 200_000), np.empty(200_000), np.empty(200_000)
sums(a, b, own, library)

libm = ctypes.CDLL("libm.so.6")
address = lambda name: ctypes.cast(getattr(libm, name), ctypes.c_void_p).value
print(json.dumps({
    "digests": digests,
    "phones": digest_of(log_probs_of(phones, recordings[:3])),
    "alone": digest_of([log_probs_of(phones, [each])[0] for each in recordings[:3]]),
    "decoded": decoded.hexdigest(),
    "recurrent": digest_of(log_probs_of(gru, recordings)),
    "segments": digest_of([model.read(each) for each in recordings]),
    "mandarin": digest_of(log_probs_of(mandarin, recordings)),
    "marks": digest_of([shipped_tagger().logits(text.split()) for text in [*texts, " ".join(texts)]]),
    "written": [(one.symbols, one.log_prob.hex()) for one in map(Moonshine.load().read, recordings[:3])],
    "accurate": [[word.text for word in words] for words in map(taken, found)],
    "characters": ["".join(word.text for word in words_of(each)) for each in log_probs_of(mandarin, spoken)],
    "sums": [hashlib.sha256(each.tobytes()).hexdigest() for each in (own, library)],
    "instructions": instruction_set(),
    "processor": cpu_target.target_context.codegen().magic_tuple()[1],
    "torch": torch.backends.cpu.get_cpu_capability(),
    "onednn_bf16": bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    "libm": address("sin") - address("nan"),
}))
"""

OF_THE_TAGGER = "82bf9e8c31e0bec0b676164f6c496bfdf063d9ff1f4c9c89055e7e98c8f012e6"
"""Digest of the shipped tagger's logits of the samples' transcripts, and of all of them as one text."""


@cache
def in_a_process(switches: tuple[tuple[str, str], ...], sizes: tuple[int, ...] = (100,)) -> Mapping[str, Any]:
    """Return the digests in batches of these sizes, and what a process with these switches detects."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, json.dumps(sizes)],
        cwd=ROOT,
        env=environment(dict(switches)) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def process(switches: Mapping[str, str], *sizes: int) -> Mapping[str, Any]:
    return in_a_process(tuple(switches.items()), *([sizes] if sizes else []))


def test_the_digest_is_the_committed_one_and_that_of_any_batch() -> None:
    assert set(process({}, 1, 2, 3, 5, 8, 100)["digests"]) == {digest.committed_digest()}


LEVELS: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    "this": ({}, ()),
    "AVX2": (AVX2, ("avx2", "x86-64-v3", "AVX2")),
    "x86-64": (BASELINE, ("portable", "x86-64", "DEFAULT")),
    "older libraries": (OLD_LIBRARIES, ()),
}


@pytest.mark.timeout(300)  # as on a busy machine with the portable code: two processes of a minute each
@pytest.mark.parametrize("level", LEVELS)
def test_all_results_are_the_same_as_on_another_processor(level: str) -> None:
    switches, detected = LEVELS[level]
    found, native = process(switches), process({})
    if is_x86() and detected and (switches is BASELINE or has("avx2")):
        assert (found["instructions"], found["processor"], found["torch"]) == detected
        assert switches is BASELINE or not found["onednn_bf16"]
    if is_x86() and switches is OLD_LIBRARIES and has("fma"):
        assert found["libm"] != native["libm"], "glibc chose the same sine as without the switch"
        assert found["sums"][1] != native["sums"][1], "the library's exp and log1p have the bits of the other variant"
    assert found["digests"] == [digest.committed_digest()]
    assert found["recurrent"] == digest.committed_digest(checkpoint.GRU.name)
    assert found["mandarin"] == digest.committed_digest(checkpoint.shipped_for("zh").name)
    assert found["marks"] == OF_THE_TAGGER
    assert found["phones"] == found["alone"], "a batch changes no bit"
    assert any(found["accurate"])
    for name in ("segments", "phones", "decoded", "characters", "written", "accurate"):
        assert found[name] == native[name], name
    assert found["sums"][0] == native["sums"][0]


def test_the_committed_digests_are_those_of_the_shipped_checkpoints_and_no_other_is_named() -> None:
    rows = (checkpoint.WEIGHTS / digest.COMMITTED).read_text().splitlines()
    shipped = (*checkpoint.SHIPPED_MODELS, SEGMENTS)
    assert [row.split("  ")[1] for row in rows] == [path.name for path in shipped]
    assert digest.committed_digest("another.safetensors") is None


def test_a_single_bit_changes_the_digest() -> None:
    outputs = [np.zeros((3, 4), np.float32), np.ones((2, 4), np.float32)]
    changed = [outputs[0], outputs[1].copy()]
    changed[1][1, 3] = np.nextafter(np.float32(1), np.float32(2))
    assert digest.digest_of(outputs) != digest.digest_of(changed)
