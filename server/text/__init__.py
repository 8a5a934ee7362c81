"""Formatting of final texts: capitals, marks, digits."""
