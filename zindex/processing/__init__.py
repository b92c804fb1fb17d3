"""Functions that turn the raw samples of files into training samples, and samples into batches."""
