"""Readers of raw samples: tar, jsonl, Parquet and text files, local or in object stores."""
