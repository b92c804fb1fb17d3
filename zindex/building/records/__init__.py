"""Records of tar and jsonl files to ragged Zarr stores: the files are read once, in two stages."""
