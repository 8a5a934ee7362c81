"""The shipped model on real speech end to end: files, sessions, engine, decoding, sockets."""

import asyncio
import itertools
import queue
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.batcher import Policy
from batching.engine import Engine
from batching.events import BatchDone
from model.acoustic import load_model
from model.checkpoint import GRU
from model.decoder import decoder_of
from model.evaluation.scoring import by_source
from model.recordings import read_pcm
from server.models.loading import load_local
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import development, samples
from tests.support.needs import need_precision, need_programs
from tests.support.protocols.wire_stream import WireStream
from tutti_asr_client.files.transcribe import transcribe_files
from tutti_asr_client.files.transcriber import RemoteTranscriber
from tutti_asr_client.messages import Results
from tutti_asr_lab.training.synthesis.voices import Voice, speak


@pytest.fixture(scope="module")
def model():
    return load_model()


def recognized(utterances, concurrency=32, **options):
    chosen = Settings(max_batch=concurrency, **options)
    return asyncio.run(evaluate(utterances, lambda: open_local(chosen), concurrency))


def test_every_shipped_recording_is_transcribed_correctly():
    utterances = samples()
    texts = recognized(utterances).texts
    assert dict(zip([u.audio.name for u in utterances], texts, strict=True)) == {
        u.audio.name: u.text for u in utterances
    }


@pytest.mark.parametrize(("name", "most"), [("tutti-gru", 0.02), ("tutti", 0.09)])
def test_spoken_digits_of_a_held_out_speaker_are_recognized(name, most):
    digits = [u for u in development() if u.source == "fsdd_digits"]
    evaluation = recognized(digits, model=Path(name))
    score = by_source(zip([u.source for u in digits], [u.text for u in digits], evaluation.texts, strict=True))
    assert score["fsdd_digits"].wer <= most


@pytest.mark.parametrize("options", [{"decoder": "greedy"}, {}])
def test_a_server_gives_the_same_text_as_this_process_for_every_file(live_server, options):
    """32 at a time over sockets, compared with a different batching in this process: identical texts."""
    utterances = [*development()[::16], *samples()]
    chosen = Settings(**options)
    server = live_server(model=[load_local(None, chosen)], max_streams=64)
    remote = RemoteTranscriber(f"ws://{server.host}")
    over_sockets = asyncio.run(evaluate(utterances, lambda: nullcontext(remote), 32))
    alone = recognized(utterances, concurrency=1, **options)
    assert over_sockets.texts == alone.texts
    assert any(alone.texts)


@pytest.mark.parametrize(
    ("said", "text", "marked"),
    [("yeah", "Yes.", True), ("uh-huh", "But.", True), ("yes", "Yes.", None), ("no", "No.", None)],
)
def test_a_turn_that_sounds_like_an_acknowledgement_is_marked_and_held(live_server, model, said, text, marked):
    """The recognizer writes another word, and a fork finds the mark."""
    need_programs("espeak-ng")
    samples = speak(Voice("espeak-ng", "en-us+m3", 50, 160), said)
    pcm = np.pad(np.rint(samples / np.abs(samples).max() * 20_000).astype(np.int16), (4_000, 24_000))
    server = live_server(model=model, decoder=decoder_of(model.facts))
    for query, ends in (({}, [(text, marked)]), ({"backchannel": "hold"}, [] if marked else [(text, None)])):
        with WireStream(server, "flux", **query) as stream:
            stream.send(pcm.tobytes())
            stream.send({"type": "CloseStream"})
            stream.rest()
        ended = [turn for turn in stream.frames if turn.get("event") == "EndOfTurn"]
        assert [(turn["transcript"], turn.get("backchannel")) for turn in ended] == ends
        assert bool([turn for turn in stream.frames if turn.get("event") == "StartOfTurn"]) is bool(ends)


def test_streams_of_one_batch_with_different_key_terms_give_the_same_text_as_alone(live_server):
    """Beam search, the shipped language model, four sets of key terms: each stream uses only its own."""
    utterances = development()[::40]
    terms = [(), ("zzyzx road",), tuple(utterances[1].text.split()[:3]), ("quartz", "the bungalow")]
    asked = [terms[i % len(terms)] for i in range(len(utterances))]
    server = live_server(model=[load_local(None, Settings())], max_streams=64)

    async def together():
        remotes = [RemoteTranscriber(f"ws://{server.host}", keyterm=some) for some in asked]
        return await asyncio.gather(
            *(transcribe_files([u.audio], remote) for u, remote in zip(utterances, remotes, strict=True))
        )

    async def alone(some, paths):
        async with open_local(Settings(max_batch=1, max_streams=2), keyterm=some) as transcriber:
            return await transcribe_files(paths, transcriber, concurrency=1)

    batched = [outcome.text for (outcome,) in asyncio.run(together())]
    for number, some in enumerate(terms):
        paths = [u.audio for u in utterances[number :: len(terms)]]
        assert [o.text for o in asyncio.run(alone(some, paths))] == batched[number :: len(terms)]
    assert any(batched)


async def said(transcriber, pcm, cuts):
    """Return words with times and confidence of one recording, sent in messages cut at these bytes."""
    raw = pcm.tobytes()

    async def messages():
        for start, end in itertools.pairwise([0, *cuts, len(raw)]):
            yield raw[start:end]

    results = [m async for m in transcriber.stream(messages()) if isinstance(m, Results)]
    return [word for final in results if final.is_final for word in final.words]


@given(st.data())
@settings(max_examples=5)
def test_any_split_into_messages_gives_the_same_words_times_and_confidences(data):
    pcm = read_pcm(samples()[-1].audio)
    places = st.lists(st.integers(0, 2 * len(pcm)), max_size=40).map(sorted)
    splits = [data.draw(places) for _ in range(3)]

    async def all_of_them():
        async with open_local(Settings(max_batch=4)) as transcriber:
            return await asyncio.gather(*(said(transcriber, pcm, cuts) for cuts in ([], *splits)))

    whole, *split = asyncio.run(all_of_them())
    assert whole
    assert all(words == whole for words in split)


def through_engine(model, recordings, tile_rows=None):
    """Return log-probs of every recording, streamed together through one engine."""
    step = model.config.step_samples
    events: queue.SimpleQueue = queue.SimpleQueue()
    engine = Engine(
        model.slots(capacity=64, largest=64, tile_rows=tile_rows),
        policy=Policy.EAGER,
        max_queued=1_000,
        deliver=events.put,
    )
    engine.start()
    try:
        owners = {}
        for index, pcm in enumerate(recordings):
            stream = engine.open()
            owners[stream] = index
            for start in range(0, len(pcm) - step + 1, step):
                engine.push(stream, pcm[start : start + step])
        outputs = [[] for _ in recordings]
        waiting = sum(len(pcm) // step for pcm in recordings)
        while waiting:
            event = events.get(timeout=60)
            assert isinstance(event, BatchDone), event
            for stream, row in zip(event.streams, event.outputs, strict=True):
                outputs[owners[stream]].append(row)
            waiting -= len(event.streams)
    finally:
        engine.stop(10)
    return [np.concatenate(rows) for rows in outputs]


@pytest.mark.parametrize("precision", ["int8", "bf16", "fp32"])
def test_log_probs_are_bit_identical_alone_and_in_any_batch(precision):
    need_precision(precision)
    model = load_model(GRU, precision=precision)
    recordings = [read_pcm(u.audio) for u in samples()]
    together = through_engine(model, recordings)
    for index in (0, 5, len(recordings) - 1):
        (alone,) = through_engine(model, [recordings[index]])
        assert np.array_equal(alone, together[index])
