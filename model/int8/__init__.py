"""The network in exact 8-bit arithmetic: its numbers, and the compiled step that runs them."""
