"""Zarr v3 on disk: layouts, self-proving shards, the commit protocol and the positional reader."""
