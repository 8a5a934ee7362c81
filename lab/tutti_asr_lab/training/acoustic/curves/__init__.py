"""Figures of training runs: CSV files and plots."""
