"""horovod.runner.elastic."""
