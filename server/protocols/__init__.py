"""Wire protocols: each folder knows only its own protocol."""
