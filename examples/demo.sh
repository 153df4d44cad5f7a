#!/usr/bin/env bash
# What `./run demo` shows: a partly frozen transformer, sharded over two ranks of this machine.
set -euo pipefail
export CUDA_VISIBLE_DEVICES=""  # two ranks on the CPU, also where there is one GPU
bin=${FLOE_BIN_DIR:?set FLOE_BIN_DIR to the folder of the built programs}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

echo
echo "1. What a rank will hold and move, before anything runs:   floe plan configs/demo.yaml world=2"
echo
"$bin/floe" plan "$here/configs/demo.yaml" world=2
echo
echo "2. The same kind of model, trained by two ranks:   floe launch -n 2 --exec partly_frozen_transformer"
echo
"$bin/floe" launch -n 2 --exec "$bin/partly_frozen_transformer"
echo
echo "Next: examples/shard_mlp.cc shards a model of your own in under 60 lines; docs/architecture.md has the picture."
