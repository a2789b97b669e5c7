"""horovod.runner.elastic.constants: texts that programs compare."""

RESET_LIMIT_EXCEEDED_MESSAGE = "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
#: Begins the error of a job that has failed for another reason.
FAILED_MESSAGE = "Horovod detected that one or more processes exited with non-zero status"
