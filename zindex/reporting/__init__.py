"""A report of a run as one HTML file: its mix, order, lengths, reads and samples."""
