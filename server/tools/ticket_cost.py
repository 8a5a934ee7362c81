"""`python -m server.resume` prints what tickets of the shipped model weigh and take."""

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

app = typer.Typer(add_completion=False, no_args_is_help=True)
RUNS = 50


@app.command()
def report(
    audio: Annotated[Path | None, typer.Option(help="Mono, at the model's rate; a shipped sample by default.")] = None,
    at_s: Annotated[float, typer.Option(help="Stream time of the ticket.")] = 2.0,
) -> None:
    """Print size of a ticket and the time that it takes to make and to read, for each decoder."""
    table = Table("decoder", "state", "search", "ticket", "save ms", "write ms", "read ms", "restore ms")
    figures = [_measure(decoder, audio, at_s) for decoder in ("greedy", "beam")]
    for row in figures:
        sizes = [f"{row[name]:,}" for name in ("state_bytes", "decoder_bytes", "ticket_characters")]
        times = [f"{row[name]:.3f}" for name in ("save_ms", "write_ms", "read_ms", "restore_ms")]
        table.add_row(str(row["decoder"]), *sizes, *times)
    Console().print(table)
    typer.echo(json.dumps(figures))


def _measure(name: str, audio: Path | None, at_s: float) -> dict[str, str | int | float]:
    from model.acoustic import AcousticModel
    from model.decoder import make_decoder
    from server.resume.seal import Seal
    from server.resume.tickets import Ticket, read_ticket, write_ticket
    from server.settings import Settings
    from server.tools.whole import SavedRun

    model = AcousticModel.load()
    run = SavedRun(model, make_decoder(Settings.model_validate({"decoder": name}), model.config))
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
    import model

    path = audio or min((Path(model.__file__).parent / "samples").glob("*.flac"))
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
