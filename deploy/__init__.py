"""Deployment: images, Compose, Kubernetes, proxies, monitoring, Ray."""
