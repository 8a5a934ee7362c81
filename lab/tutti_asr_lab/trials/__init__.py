"""Programs that prove a release: faults, overload, hostile clients, long runs."""
