"""`python -m tutti_asr_lab.trials.failover`: live streams through a proxy while a replica fails."""
