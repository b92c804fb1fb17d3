"""Committed stores over time: edits of a run and repair of damaged shards."""
