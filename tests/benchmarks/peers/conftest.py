"""The peers' own sides run in environments of their own: pytest's has none of these packages."""

collect_ignore_glob = ["run_*.py"]
