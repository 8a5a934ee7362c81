"""Server-wide decisions, shared by all processes of a server: quotas, rates, admission of streams, used tickets."""
