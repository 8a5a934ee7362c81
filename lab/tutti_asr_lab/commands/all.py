"""All commands of the lab, as the group of entry points `tutti.commands` names them."""

from __future__ import annotations

import typer

from server.cli.options import CheckedCommand
from tutti_asr_lab.commands.calibrate import calibrate
from tutti_asr_lab.commands.export import export
from tutti_asr_lab.commands.lm import lm
from tutti_asr_lab.commands.plan import plan
from tutti_asr_lab.commands.quantize import quantize
from tutti_asr_lab.commands.train import synthesize, train


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (train, quantize, export, synthesize, calibrate, plan):
        app.command(cls=CheckedCommand)(command)
    app.add_typer(lm, name="lm")
