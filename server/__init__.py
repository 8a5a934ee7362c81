"""The speech server: sockets, sessions and wire protocols around the batching engine. Start with `app.py`."""
