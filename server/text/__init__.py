"""Text formatting: capitals, punctuation, digits."""
