"""One level of load after another against a running server, and what is reported of it."""
