"""Compiled steps of published networks, with products in exact 8-bit integers."""
