"""Repairing stores: what is damaged is made again, and must be what was committed."""
