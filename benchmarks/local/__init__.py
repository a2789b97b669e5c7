"""The parts of the benchmark of local updates, each with what it trains and the rows it gives."""
