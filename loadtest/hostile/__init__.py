"""`python -m loadtest.hostile`: a server under attack by hostile clients."""
