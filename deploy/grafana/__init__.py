"""The Grafana dashboard and where it comes from."""
