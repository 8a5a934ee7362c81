"""`python -m loadtest.keyterms`: what key terms find, and what they cost other words."""
