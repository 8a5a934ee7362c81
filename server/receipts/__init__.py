"""Receipts: signed statements of what was recognized, from which audio and with which model and settings."""
