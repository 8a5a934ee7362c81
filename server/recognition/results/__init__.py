"""Order of results: what waits for a second pass, a fork, a saved state, or another channel."""
