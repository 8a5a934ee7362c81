"""Measurements of the GPU path: `python -m tutti_asr_lab.benchmarks.gpu run --part 1|2|3`.

GPU hosts often have only torch, numpy, safetensors and Triton, so this package imports nothing but those, `batching`
and `model`. Each result is stored with device, versions, commit and date.
"""
