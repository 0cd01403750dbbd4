"""Graph to graph: sharding, memory, and the verifier that runs after each pass."""
