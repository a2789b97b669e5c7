"""Baselines for comparison: compression methods of torch, and Horovod in an environment of its own."""
