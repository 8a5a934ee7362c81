"""Open-loop load generator of live streams in real time."""
