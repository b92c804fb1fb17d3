"""Tokenizers of files of every kind that Megatron knows, with one set of methods; no torch."""
