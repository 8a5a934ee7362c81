"""`python -m loadtest.benchmarks.ray.trial`: replicas that Ray places and scales, under live streams."""
