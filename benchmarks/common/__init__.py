"""Rig of all benchmarks: groups of workers, systems under test, blocks of samples, bounds, plots."""
