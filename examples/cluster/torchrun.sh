#!/bin/bash
# On every host the same command, with HEAD set to the name of one of them: two hosts, eight ranks
# each. After a failure the agents start the ranks again, at most five times, and the run goes on
# from the newest checkpoint.
set -eu
exec torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 5 \
  --rdzv-backend c10d --rdzv-endpoint "${HEAD:?the host where agents meet}:29400" --rdzv-id "${JOB:-floe}" \
  --no-python floe train my.yaml run.dir=/shared/runs run.name=my "$@"
