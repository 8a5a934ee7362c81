"""Tickets: the state of a stream as sealed text, from which another replica goes on."""
