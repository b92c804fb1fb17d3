"""Instantiate datasets from YAML files, with a closed list of target names."""
