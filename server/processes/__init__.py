"""A server of several processes: supervisor, front ends, engine host."""
