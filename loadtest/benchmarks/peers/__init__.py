"""Comparison with other servers of the same weights under the same load.

`python -m loadtest.benchmarks.peers` starts one after another and compares them. Each server is a program of its own
(`python -m loadtest.benchmarks.peers.fastapi_torch` and so on) and speaks the frames that the load generator knows.
"""
