"""Process functions for raw samples, and collate functions for batches."""
