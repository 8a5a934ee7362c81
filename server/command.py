"""Entry point of the command `tutti`: an interrupt ends it with status 130, also while its modules are imported."""

from __future__ import annotations


def main() -> None:
    """Import and run the command line."""
    try:
        from server.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
