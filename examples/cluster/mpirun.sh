#!/bin/bash
# Two hosts, eight ranks each, by OpenMPI. Rank 0 is on the first host of the list.
set -eu
hosts=${HOSTS:?such as: h0:8,h1:8}
first=${hosts%%[:,]*}
exec mpirun --host "$hosts" -x MASTER_ADDR="$first" -x MASTER_PORT="${MASTER_PORT:-29500}" -x PATH \
  floe train my.yaml run.dir=/shared/runs run.name=my "$@"
