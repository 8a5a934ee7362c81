"""`python -m server.tools.ticket_cost`: size of a ticket of the shipped model, and the time to make and to read one."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import soundfile
import typer
from rich.console import Console
from rich.table import Table

from batching.stepper import Stepper
from model.acoustic import load_own
from model.checkpoint import WEIGHTS
from model.ctc.words import Decoder
from model.decoder import DecoderName, make_decoder
from server.audio.pcm import PCM
from server.models.loading import AcousticModel
from server.recognition.saved_state import SavedStream
from server.recognition.session import Limits, Session, SessionOptions
from server.recognition.steps import StepTag
from server.resume.seal import Seal
from server.resume.tickets import Ticket, read_ticket, write_ticket

app = typer.Typer(add_completion=False, no_args_is_help=True)
RUNS = 50  # of each operation, whose median counts


class SavedRun:
    """A session and its place in a pool of one slot."""

    def __init__(self, model: AcousticModel, decoder: Decoder) -> None:
        self._model, self._decoder = model, decoder
        self._stepper = Stepper(model.slots(capacity=1, largest=1))
        self._handle = self._stepper.pool.take()
        self._session = self._new_session()

    def _new_session(self) -> Session:
        options = SessionOptions(sample_rate=self._model.config.sample_rate, resumable=True)
        return Session(options, self._model.config, self._decoder, Limits(max_backlog_s=1e9))

    def hear(self, samples: PCM, until_s: float) -> None:
        """Recognise (S,) int16 up to this stream time."""
        session, channel = self._session, self._session.channels[0]
        for piece in session.samples(samples[: round(until_s * self._model.config.sample_rate), np.newaxis], 0.0):
            assert isinstance(piece.tag, StepTag)
            outputs = self._stepper.run([self._handle], [piece.pcm])
            self._decoder.advance([channel.state], outputs)
            session.decoded(channel, piece.tag)

    def saved(self) -> SavedStream:
        """Return the state behind the last whole step."""
        resumption = self._session.resumption
        assert resumption is not None, "the session was made resumable"
        resumption.mark()
        self._session.exported(self._session.channels[0], self._stepper.pool.export(self._handle))
        saved = resumption.order.take_saved()
        assert saved is not None, "nothing is on its way"
        return saved

    def restore(self, saved: SavedStream) -> None:
        """Go on from it, in another session."""
        self._session = self._new_session()
        assert self._session.resumption is not None, "the session was made resumable"
        self._session.resumption.restoring(saved)()
        self._stepper.pool.restore(self._handle, saved.states[0])


@app.command()
def report(
    audio: Annotated[Path | None, typer.Option(help="Mono, at the model's rate; a shipped sample by default.")] = None,
    at_s: Annotated[float, typer.Option(help="Stream time of the ticket.")] = 2.0,
) -> None:
    """Print size of a ticket and the time that it takes to make and to read, for each decoder."""
    table = Table("decoder", "state", "search", "ticket", "save ms", "write ms", "read ms", "restore ms")
    decoders: tuple[DecoderName, ...] = ("greedy", "beam")
    figures = [_measure(decoder, audio, at_s) for decoder in decoders]
    for row in figures:
        sizes = [f"{row[name]:,}" for name in ("state_bytes", "decoder_bytes", "ticket_characters")]
        times = [f"{row[name]:.3f}" for name in ("save_ms", "write_ms", "read_ms", "restore_ms")]
        table.add_row(str(row["decoder"]), *sizes, *times)
    Console().print(table)
    typer.echo(json.dumps(figures))


def _measure(name: DecoderName, audio: Path | None, at_s: float) -> dict[str, str | int | float]:
    model = load_own()
    run = SavedRun(model, make_decoder(config=model.config, decoder=name))
    run.hear(_samples(audio), at_s)
    saved, seal = run.saved(), Seal([bytes(32)])
    ticket = Ticket(bytes(16), "00000000-0000-0000-0000-000000000000", 0.0, bytes(16), bytes(16), ((),), saved)
    text = write_ticket(ticket, seal)
    return {
        "decoder": name,
        "state_bytes": len(saved.states[0]),
        "decoder_bytes": len(saved.channels[0].decoder),
        "ticket_characters": len(text),
        "save_ms": _median_ms(run.saved),
        "write_ms": _median_ms(lambda: write_ticket(ticket, seal)),
        "read_ms": _median_ms(lambda: read_ticket(text, seal)),
        "restore_ms": _median_ms(lambda: run.restore(saved)),
    }


def _samples(audio: Path | None) -> np.ndarray:
    path = audio or min((WEIGHTS.parent / "samples").glob("*.flac"))
    samples, _ = soundfile.read(path, dtype="int16")
    return np.asarray(samples)


def _median_ms(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    app()
