"""Pure arithmetic before any work: splits, epochs, sample counts, layouts, keys and identity."""
