"""What holds for every test."""

import os

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # as the commands do, see ddtree/cli/__init__.py; before NumPy is imported
