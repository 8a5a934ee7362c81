"""Order of results, which may wait for a second pass, a fork, a saved state, or another channel."""
