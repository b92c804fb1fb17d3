"""Readers and writers of external formats, in numpy and the standard library."""
