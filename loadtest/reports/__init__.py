"""Reports of measurements: criteria, pages, and the environment."""
