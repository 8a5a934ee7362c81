"""The Grafana dashboard and its generator."""
