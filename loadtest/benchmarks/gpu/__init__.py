"""Measurements of the GPU path: `python -m loadtest.benchmarks.gpu run --part 1|2|3`.

A machine with a GPU often has torch, numpy, safetensors and Triton alone, so nothing here imports more than those,
`batching` and `model`. A number is written beside the device, the versions, the commit and the date it was taken on.
"""
