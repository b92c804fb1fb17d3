"""Pre-training corpora: ``.bin/.idx`` pairs, Zarr token stores, and tokenised texts."""
