"""Entry point: `python -m server.cli` is the same as `tutti`."""

from server.cli import main

main()
