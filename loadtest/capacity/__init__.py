"""`python -m loadtest.capacity`: the number of live streams that one machine carries."""
