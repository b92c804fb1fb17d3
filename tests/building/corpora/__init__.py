"""Tests of the making of corpora."""
