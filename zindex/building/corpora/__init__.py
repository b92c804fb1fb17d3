"""Texts to pre-training corpora: Zarr token stores or pairs of ``.bin/.idx``."""
