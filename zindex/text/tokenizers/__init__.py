"""Tokenizers of every kind of file that Megatron knows, with one interface; no torch."""
