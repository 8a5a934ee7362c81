"""Comparison with sherpa-onnx: the same weights under the same load.

`python -m loadtest.peers` starts the servers in turn. sherpa-onnx is served by a program of its own,
`loadtest.peers.sherpa_server`, with the protocol of the load generator.
"""
