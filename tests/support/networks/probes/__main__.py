"""`python -m tests.support.networks.probes KIND FOLDER --size SIZE` writes a probe for `tutti serve --model`."""

from pathlib import Path
from typing import Annotated

import typer

from .making import make_probe


def main(kind: str, folder: Path, size: Annotated[str, typer.Argument()] = "small"):
    """Write a published model of random weights, for measurements: KIND and SIZE as for `make_probe`."""
    typer.echo(f"wrote {make_probe(kind, folder, size=size).model}")


if __name__ == "__main__":
    typer.run(main)
