"""Decisions that are made once for all processes of a server: quotas, room for streams, when refused clients retry."""
