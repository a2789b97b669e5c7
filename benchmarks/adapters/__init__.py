"""Parts of the benchmark `doors`."""
