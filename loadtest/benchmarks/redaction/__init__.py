"""`python -m loadtest.benchmarks.redaction`: share of spoken numbers that `redact` masks, and what it costs."""
