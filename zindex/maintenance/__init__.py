"""Maintenance of committed stores: edits of a run, repair of damaged shards, garbage collection."""
