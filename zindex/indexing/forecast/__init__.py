"""Forecasts of the time and memory of a build, and of the number of nodes that it can use."""
