"""Decoding of engine outputs: each batch on the event loop, second passes over ended segments on threads."""
