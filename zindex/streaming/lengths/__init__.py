"""How long the samples of streamed sources are, and what that advises."""
