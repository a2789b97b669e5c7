"""Parts of the benchmark `frontier`."""
