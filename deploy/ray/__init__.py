"""Replicas placed, supervised and scaled by Ray; audio goes from client to HAProxy to replica, not through Ray."""
