"""Tickets: the state of a stream as sealed text, with which another replica continues the stream."""
