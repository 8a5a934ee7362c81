"""Peer (a) under load, and packed states of (b) and (c), with the shipped network."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import typer

from loadtest.benchmarks.peers import bench, fastapi_torch
from loadtest.benchmarks.peers.contestants import chosen
from loadtest.benchmarks.peers.launch import launched
from loadtest.benchmarks.peers.network import PeerNetwork
from loadtest.benchmarks.peers.stream import Stream
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure
from model.machine import precision
from model.recordings import read_pcm
from tests.support.audio.speech import samples

SHORT = next(u for u in samples() if u.audio.stem == "stop")  # transcribed correctly by greedy decoding


@pytest.fixture(scope="module", params=[False, True], ids=["as written", "recorded"])
def network(request: pytest.FixtureRequest) -> PeerNetwork:
    threads = torch.get_num_threads()
    made = PeerNetwork(threads=1, recorded=request.param)
    torch.set_num_threads(threads)
    return made


def recognized(network: PeerNetwork, pcm: bytes) -> tuple[str, list[list[int]]]:
    stream, state, symbols_by_stream = Stream(network.card), network.fresh_state(), []
    for step in [*stream.audio(pcm), *stream.rest()]:
        symbols, state = network.step_one(step, state)
        stream.add_symbols(symbols)
        symbols_by_stream.append(symbols)
    return stream.text, symbols_by_stream


def test_packed_states_give_the_same_symbols_as_tensors(network: PeerNetwork) -> None:
    audios = [read_pcm(u.audio).tobytes() for u in samples() if u.audio.stem in ("yes", "no", "stop")]
    steps = [list(Stream(network.card).audio(pcm)) for pcm in audios]
    count = min(len(one) for one in steps)
    rows = [network.fresh_row() for _ in audios]
    symbols_by_stream: list[list[list[int]]] = [[] for _ in audios]
    for at in range(count):
        symbols, after = network.step_rows([one[at] for one in steps], rows)
        rows = list(after)
        for stream, found in zip(symbols_by_stream, symbols, strict=True):
            stream.append(found)
    assert all(row.nbytes == network.row_bytes for row in rows)
    for pcm, found in zip(audios, symbols_by_stream, strict=True):
        assert found == recognized(network, pcm)[1][:count]


def test_the_peer_is_launched_loaded_and_stopped() -> None:
    (contestant,) = chosen("fastapi")
    with launched(contestant.command) as server:
        settings = LoadSettings(url=server.url, streams=(2,), seconds=2.0, warmup_s=0.5, max_recordings=3)
        (level,) = measure(settings, progress=lambda _: None).document.levels
        sizes, spent = server.batches(), server.cpu_by_name()
    assert bench.sustained(level, 10_000.0)  # complete; its speed is not tested
    assert level.steps > 20
    assert level.compared
    assert not level.mismatched
    assert set(sizes) == {1}
    assert sizes[1] >= level.steps
    assert spent["fastapi_torch"] > 0.0


def test_an_unsupported_precision_is_a_bad_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    threads = torch.get_num_threads()
    with pytest.raises(typer.BadParameter, match="use --precision int8, fp32 or auto"):
        fastapi_torch.main(port=0, threads=threads, precision="bf16")


def test_the_peer_has_the_text_of_the_network(network: PeerNetwork) -> None:
    text, _ = recognized(network, read_pcm(SHORT.audio).tobytes())
    assert text == SHORT.text


def test_a_row_of_zeros_is_a_fresh_state(network: PeerNetwork) -> None:
    pcm = np.random.default_rng(1).integers(-9_000, 9_000, network.card.step_bytes // 2).astype(np.int16).tobytes()
    symbols, _ = network.step_rows([pcm] * 2, [network.fresh_row()] * 2)
    assert symbols[0] == symbols[1] == network.step_one(pcm, network.fresh_state())[0]
    assert json.dumps(symbols)  # plain numbers, serializable by any framework
