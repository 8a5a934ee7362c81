"""`python -m server.cli` is `tutti`."""

from server.cli import main

main()
