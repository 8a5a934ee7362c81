"""SIGHUP: read again what can be read again. Without it the process would end on it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable


def on_hangup(action: Callable[[], None]) -> None:
    """Call this at each SIGHUP, on the running loop. Signals reach the main thread alone: elsewhere it is nothing."""
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)
