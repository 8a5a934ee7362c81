"""Comparison with sherpa-onnx: the same weights under the same load.

`python -m tutti_asr_lab.benchmarks.peers` starts the servers in turn. sherpa-onnx is served by a program of its own,
`tutti_asr_lab.benchmarks.peers.sherpa_server`, with the protocol of the load generator.
"""
