"""Dask graphs over shards: convert, documents, samples, shuffle, export. Dask lives only here."""
