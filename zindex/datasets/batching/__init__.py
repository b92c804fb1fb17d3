"""Many samples made together: their tokens read in a few rounds, their tensors in one piece."""
