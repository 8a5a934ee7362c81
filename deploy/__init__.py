"""Running it as a service."""
