"""Tokenizers for all file formats that Megatron supports, with one interface; no torch."""
