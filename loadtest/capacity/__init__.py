"""`python -m loadtest.capacity`: how many live streams one machine carries."""
