"""Bytes and their locations: local files, object stores, compression, file lists, threads."""
