"""Repair: damaged shards are recomputed and checked against what was committed."""
