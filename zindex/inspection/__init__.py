"""Inspect stores, runs and machines: reports, tables, plots and benchmarks."""
