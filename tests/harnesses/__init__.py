"""Harnesses: short under pytest, large by ``python -m tests.harnesses.NAME --trials N``."""
