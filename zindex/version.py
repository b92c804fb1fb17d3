"""The version of zindex; that of pyproject.toml, which a test compares."""

VERSION = "0.1.0"
