"""Decisions that are made once for all processes of a server: quotas, rates, room for streams, used tickets."""
