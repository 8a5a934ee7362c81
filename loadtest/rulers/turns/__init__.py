"""Ends of turns: how often a speaker is cut off in a pause, against how long the answer waits at the end of a turn."""
