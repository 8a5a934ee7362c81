"""`tutti calibrate`: measure this machine for `tutti plan`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from server.cli.errors import fail
from server.cli.options import (
    DeviceOption,
    ModelOption,
    PrecisionOption,
    ThreadsOption,
    default_of,
    one_of,
    settings_from,
)

if TYPE_CHECKING:
    from model.decoder import DecoderName


def calibrate(
    *,
    out: Annotated[Path, typer.Option(help="Calibration file to write.")] = Path("build/calibration.json"),
    decoder: Annotated[
        str,
        typer.Option(
            help="That of the planned server: greedy, beam, or auto, which is beam search with a language model.",
            default_factory=default_of("decoder"),
            envvar="TUTTI_DECODER",
            callback=one_of("auto", "greedy", "beam"),
        ),
    ],
    threads: ThreadsOption,
    model: ModelOption = None,
    device: DeviceOption,
    precision: PrecisionOption,
) -> None:
    """Measure batch times and server overhead for `tutti plan`. Run it on an otherwise idle machine."""
    from loadtest.errors import LoadTestError
    from model.errors import ModelError
    from tutti_asr_lab.planning.calibrate import calibrate as measure
    from tutti_asr_lab.planning.plan_report import calibration_lines

    try:
        found = measure(
            model_path=model,
            device=device,
            precision=precision,
            threads=threads,
            decoder=cast("DecoderName", decoder),
            progress=partial(typer.echo, err=True),
            rewriting=settings_from({}).graph_rewriting,
        )
        found.save(out)
    except (ModelError, LoadTestError, OSError) as error:
        fail(error)
    typer.echo("\n".join([*calibration_lines(found), f"wrote {out}"]))
