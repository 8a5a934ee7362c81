"""Decisions that are made once for all processes of a server: quotas, room for calls, when refused clients retry."""
