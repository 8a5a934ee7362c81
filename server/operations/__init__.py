"""Operation of a replica: metrics, logs, drain, watchdog, process setup."""
