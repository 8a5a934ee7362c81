"""The speech server: sockets, sessions and wire protocols around the batching engine. Start with `listen.py`."""
