"""Results posted to a URL that the client names: an allow-list, a queue on disk, deliveries with signatures."""
