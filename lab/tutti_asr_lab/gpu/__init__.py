"""Recurrent layers in CUDA C++ with weights on the chip for a whole chunk, and their compilation and launch."""
