#!/bin/bash
# On every host the same command, with HEAD set to the name of one of them: two to four hosts, eight
# ranks each. After a failure, or when a host is lost, the ranks are started again, at most five times,
# and the run goes on from the newest checkpoint with the hosts that are there.
set -eu
exec floe launch -n 8 --nnodes 2:4 --rdzv "${HEAD:?the host where launchers meet}:29400" --max-restarts 5 \
  -- train my.yaml run.dir=/shared/runs run.name=my "$@"
