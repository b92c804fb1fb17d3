"""Repair: damaged shards are recomputed and compared with what was committed."""
