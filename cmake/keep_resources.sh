#!/bin/sh
# usage: keep_resources.sh COMPILER ARGUMENT...
# Runs nvcc and keeps its report of the registers and memory of each kernel as OBJECT.resources.
object=
previous=
for argument; do
  if [ "$previous" = -o ]; then
    object=$argument
  fi
  previous=$argument
done
if [ -z "$object" ]; then
  exec "$@"
fi
"$@" 2>"$object.resources"
status=$?
grep -v -e '^ptxas info ' -e ' bytes stack frame, ' "$object.resources" >&2
exit $status
