"""Objects that YAML files describe, made of a closed list of names."""
