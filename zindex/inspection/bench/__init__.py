"""Measured bandwidths of this machine and a cost model that forecasts builds and loading."""
