"""Metrics, run files and pages on a training, made from facts that the runtime and the optimizers have."""
