"""YAML to step graph: pure Python and NumPy, no CUDA, no Jinja."""
