"""`python -m loadtest.capacity`: capacity of one machine in live streams."""
