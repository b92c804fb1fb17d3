"""Forecast the time and memory of a build, and the number of nodes that it can use."""
