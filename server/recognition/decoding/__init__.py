"""Decoding of what the engine gives: of each batch on the event loop, of ended segments again on threads."""
