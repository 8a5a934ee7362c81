"""The load generator behind `tutti loadtest`, and the comparison behind `make bench`.

Knows the wire through `clients`; knows no model and no engine, and works against any server that
speaks the protocol.
"""
