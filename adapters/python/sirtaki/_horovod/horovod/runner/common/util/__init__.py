"""horovod.runner.common.util."""
