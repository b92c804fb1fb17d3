"""What a machine gives, measured: its bandwidths, short builds, and what larger ones will take."""
