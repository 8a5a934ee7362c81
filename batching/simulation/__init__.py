"""Capacity planning: the real `Batcher` on a virtual clock with measured service times. Start with `simulator.py`.

It knows no audio, socket or metric; the cost of the rest of the server is a few measured times.
"""
