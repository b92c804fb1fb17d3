"""What becomes of raw samples: packed texts, images, batches."""
