"""Load tests of a running server, level by level, and their reports."""
