"""From torch datasets to batches: samplers, collation, the loader and its state."""
