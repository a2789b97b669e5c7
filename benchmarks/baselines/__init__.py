"""Systems the benchmarks compare with that need an environment of their own."""
