"""Step graph to CUDA C."""
