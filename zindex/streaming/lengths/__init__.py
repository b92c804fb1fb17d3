"""Count the lengths of streamed samples, and advise on weights and sequence lengths."""
