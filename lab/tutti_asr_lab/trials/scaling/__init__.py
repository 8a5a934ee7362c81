"""Real replicas scaled by the simulated autoscaler's rule, with HAProxy in front of them, under a load that doubles."""
