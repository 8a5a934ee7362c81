"""Container images and their health check."""
