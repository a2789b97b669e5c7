"""Times of the CUDA kernels on a GPU."""
