"""A forecast of the time and the memory of a build, and of the nodes that it is worth."""
