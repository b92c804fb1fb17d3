"""Sub-samples of different lengths, assigned to ranks and sent to them."""
