"""Count the lengths of streamed samples, and recommend weights and sequence lengths."""
