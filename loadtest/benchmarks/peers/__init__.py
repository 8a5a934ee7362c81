"""Comparison with other servers of the same weights under the same load.

`python -m loadtest.benchmarks.peers` starts the servers in turn and compares them. Each server is a separate program
(`python -m loadtest.benchmarks.peers.fastapi_torch` and so on) with the protocol of the load generator.
"""
