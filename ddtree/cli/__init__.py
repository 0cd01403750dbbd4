"""The commands."""

import os

# Rows are multiplied one by one (graph/numerics.py): products too small for threads, which would only wait for one another.
# NumPy's library reads this when it is imported, which the commands do after this line.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
