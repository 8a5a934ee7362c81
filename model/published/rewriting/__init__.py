"""Rewriting of published graphs at load: the same function in fewer and faster nodes."""
