"""The GPU runtime: one device, its memory, its kernels and captured rounds."""
