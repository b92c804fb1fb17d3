"""Formats that come from outside: readers and writers in numpy and the standard library."""
