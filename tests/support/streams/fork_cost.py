"""Processor time of recognition with forks, as a multiple of that without: `python -m tests.support.streams.fork_cost`.

Sessions, engine, decoding and forks of a server without sockets, on one thread: 300 streams of the shipped recordings,
each forked 20 times a minute. Rounds with and without forks alternate; the medians are compared.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time

import numpy as np

from model.acoustic import load_model
from model.decoder import decoder_of
from model.recordings import read_pcm
from tests.support.audio.speech import samples
from tests.support.streams.forked_streams import ForkedStreams, Stream

STREAMS, SECONDS, ROUNDS = 300, 6.0, 3
A_MINUTE, MEASURED_A_MINUTE = 20, 120  # more forks than asked about, because the machine disturbs every round


def main() -> None:
    """Measure, and print one JSON document."""
    model = load_model(None, device="cpu", precision="int8", threads=1)
    decoder = decoder_of(model)
    rate, step = model.config.sample_rate, model.config.step_samples
    speech = np.concatenate([read_pcm(sample.audio, rate) for sample in samples()])
    speech = np.tile(speech, 1 + round(2 * SECONDS * rate / len(speech)))
    dice = np.random.default_rng(1)
    starts = dice.integers(0, len(speech) - round(SECONDS * rate), STREAMS)
    steps = round(SECONDS * rate / step)

    def seconds(forks: int) -> tuple[float, int]:
        streams = [
            Stream(
                speech[start : start + steps * step],
                {int(place) for place in dice.choice(np.arange(1, steps + 1), forks, replace=False)},
                by_flush=True,
            )
            for start in starts
        ]
        bench = ForkedStreams(model, decoder, open_at_once=STREAMS)
        began_s = time.process_time()
        bench.run(streams, seed=1)
        return time.process_time() - began_s, sum(len(stream.forks) for stream in streams)

    each = round(MEASURED_A_MINUTE * SECONDS / 60)
    seconds(1)  # compiles
    gc.freeze()
    gc.disable()  # a server collects while nothing waits
    rounds = [(seconds(0)[0], *seconds(each)) for _ in range(ROUNDS)]
    share = A_MINUTE / MEASURED_A_MINUTE
    ratios = [1 + share * (forked - plain) / plain for plain, forked, _ in rounds]
    document = {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "ms_a_second_of_a_stream": 1e3 * statistics.median([plain for plain, _, _ in rounds]) / STREAMS / SECONDS,
        "ms_a_fork": 1e3 * statistics.median([(forked - plain) / count for plain, forked, count in rounds]),
    }
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
