"""horovod.common: the modules that programs use."""
