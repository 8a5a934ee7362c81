"""`python -m tutti_asr_lab.trials SCENARIO`: runs one of the trials."""

from __future__ import annotations

import typer

from tutti_asr_lab.trials.scenarios import (
    engine,
    failover,
    front_ends,
    hostile,
    noisy_neighbor,
    overload,
    receipts,
    soak,
    storm,
)
from tutti_asr_lab.trials.trial import command_of

SCENARIOS = (
    engine, failover, front_ends, hostile, noisy_neighbor, overload, receipts, soak, storm,
)  # fmt: skip

app = typer.Typer(add_completion=False, no_args_is_help=True)
for scenario in SCENARIOS:
    name = scenario.__name__.rpartition(".")[2]
    app.command(name)(command_of(name, scenario))

if __name__ == "__main__":
    app()
