"""The load generator: live streams paced in real time, open loop."""
