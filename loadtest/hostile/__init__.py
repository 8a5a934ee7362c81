"""`python -m loadtest.hostile`: a server among hostile clients."""
