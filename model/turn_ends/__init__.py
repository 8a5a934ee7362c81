"""Ends of turns: the score of an end after some silence, and a model that is asked in pauses."""
