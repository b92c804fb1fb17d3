"""Remove duplicate and contaminated records from files of JSON lines."""
