"""Files of raw samples, tar and jsonl, in folders or object stores, read part by part."""
