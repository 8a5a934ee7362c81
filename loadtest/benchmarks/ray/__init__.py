"""`python -m loadtest.benchmarks.ray.trial`: replicas placed and scaled by Ray, under live streams."""
