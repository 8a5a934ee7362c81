"""Errors that keep a load test from running; what happens *during* it is counted, not raised.

LoadTestError
├── BadSettings       the options make no sense together         → the user
├── BadManifest       the recordings cannot be found or read     → the user
├── NoReference       a recording fails even when it is alone    → the operator: the server is broken
├── ServerNotReady    a server we started did not become ready   → the operator: see its output
├── PeerMissing       a recogniser to compare with is missing    → the user: install it
└── BadFrame          the server broke the WebSocket framing     → counted as a failure of that stream
"""

from __future__ import annotations


class LoadTestError(Exception):
    """Base of all errors that this package raises."""


class BadSettings(LoadTestError):
    """Options out of range."""


class BadManifest(LoadTestError):
    """The manifest or one of its recordings is unusable."""


class NoReference(LoadTestError):
    """A recording has no reference text to compare with."""


class ServerNotReady(LoadTestError):
    """A server that this process started did not become ready in time."""


class PeerMissing(LoadTestError):
    """A program that a measurement needs is not installed."""


class BadFrame(LoadTestError):
    """The server broke the framing; nothing that follows on this connection can be read."""
