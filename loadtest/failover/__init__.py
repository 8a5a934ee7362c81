"""`python -m loadtest.failover`: live streams through a proxy while a replica fails."""
