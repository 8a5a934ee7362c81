"""What is computed from samples without a network: mel filters, and levels of frequency bands."""
