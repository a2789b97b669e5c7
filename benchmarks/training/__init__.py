"""Trainings that benchmarks measure: nets, layer tables, recipes, faults, kept losses and their plots."""
