"""Data-parallel training in several processes: sums in a fixed order, launching, failure detection."""
