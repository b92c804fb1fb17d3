"""Batches of torch datasets: samplers, collation, the loader and its state."""
