"""Describe paths, trace training steps, find documents and compare runs."""
