"""Keyed stores made and written back: h5, bin and jsonl files, and raw text."""
