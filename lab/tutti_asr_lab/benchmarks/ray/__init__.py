"""`python -m tutti_asr_lab.benchmarks.ray.trial`: replicas placed and scaled by Ray, under live streams."""
