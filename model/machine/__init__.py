"""This machine: instructions, compiled code and its cache, devices, precisions, threads."""
