"""Capacity planning: the real `Batcher` on a virtual clock with measured service times. Start with `simulator.py`.

Independent of audio, sockets and metrics; the rest of the server is represented by a few measured times.
"""
