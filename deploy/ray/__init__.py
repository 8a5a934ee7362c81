"""Replicas placed, supervised and scaled by Ray; audio goes client, HAProxy, replica, and never through Ray."""
