"""Training: acoustic and language models, their data, and measurements during development. Not used by the server."""
