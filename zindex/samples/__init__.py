"""Positions to tensors: the reads, masks and batches of the torch datasets."""
