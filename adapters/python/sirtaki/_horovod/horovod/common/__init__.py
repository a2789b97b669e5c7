"""horovod.common: what programs use of it."""
