"""Load generator (`tutti loadtest`), comparisons (`make bench`) and benchmarks.

Uses only the wire protocol, by way of `clients`, so it works with any server that speaks the protocol.
"""
