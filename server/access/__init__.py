"""Admission of a request: key, page origin, quota, drain state, capacity."""
