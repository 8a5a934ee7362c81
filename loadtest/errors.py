"""Errors that prevent a load test; failures during a load test are counted, not raised.

LoadTestError
├── BadSettings       invalid options                            → the user
├── BadManifest       the recordings cannot be found or read     → the user
├── NoReference       a recording fails even without load        → the operator: the server is broken
├── ServerNotReady    a server started here is not ready in time → the operator: see its output
├── PeerMissing       a recognizer to compare with is missing    → the user: install it
└── BadFrame          the server broke the WebSocket framing     → counted as a failure of that stream
"""

from __future__ import annotations


class LoadTestError(Exception):
    """Base of all errors of this package."""


class BadSettings(LoadTestError):
    """Options are out of range or contradict each other."""


class BadManifest(LoadTestError):
    """The manifest or one of its recordings cannot be used."""


class NoReference(LoadTestError):
    """A recording has no reference text to compare with."""


class ServerNotReady(LoadTestError):
    """A server that this process started did not become ready in time."""


class PeerMissing(LoadTestError):
    """A program that a measurement needs is not installed."""


class BadFrame(LoadTestError):
    """The server sent an invalid frame; the rest of the connection cannot be read."""
