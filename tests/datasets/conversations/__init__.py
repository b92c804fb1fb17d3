"""Tests of what datasets of conversations are made of."""
