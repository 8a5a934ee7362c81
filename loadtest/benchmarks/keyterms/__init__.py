"""`python -m loadtest.benchmarks.keyterms`: recall of key terms, and the errors that they cause in other words."""
