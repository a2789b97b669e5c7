"""The parts of DistributedOptimizer: reduction during backward, deferred updates, residuals, local updates."""
