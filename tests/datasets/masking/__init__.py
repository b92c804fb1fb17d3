"""Tests of what masked datasets are made of."""
