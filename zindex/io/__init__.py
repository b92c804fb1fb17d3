"""Bytes and where they are: local files, object stores, compression, file lists, threads."""
