"""Keyed stores: converted from h5, bin and jsonl files, tokenised from text, and exported."""
