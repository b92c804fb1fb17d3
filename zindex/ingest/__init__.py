"""Ingestion and export: convert, tokenize, import, merge, count and export corpora and records."""
