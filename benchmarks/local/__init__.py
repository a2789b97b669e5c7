"""Parts of the benchmarks of local updates, each with its trainings and result rows."""
