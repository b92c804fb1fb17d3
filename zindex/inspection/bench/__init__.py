"""Measure bandwidths of this machine, and forecast builds and loading with a cost model."""
