#!/usr/bin/env bash
# What `./run demo` shows: from untrained parts to a model that says what a picture shows, on two ranks of
# this machine.
#   demo.sh [FOLDER]     FOLDER gets runs/demo, runs/demo-lm and runs/demo-data; the current folder if left out
# FLOE_BIN_DIR is the folder of the programs floe and demo_data; FLOE_SHARE_DIR the one that holds configs/
# and examples/demo/, the checkout if it is not set.
set -euo pipefail
export CUDA_VISIBLE_DEVICES=""  # two ranks on the CPU, also where there is one GPU

fail() {
  printf 'demo: %s\n' "$1" >&2
  exit 2
}

(($# <= 1)) || fail "takes one folder to work in, got $# words"
[[ ${1:-} != -* ]] || fail "takes a folder to work in, not options, got '$1'"
bin=$(cd "${FLOE_BIN_DIR:?set FLOE_BIN_DIR to the folder of the built programs}" && pwd)
share=$(cd "${FLOE_SHARE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}" && pwd)
mkdir -p -- "${1:-.}"
cd -- "${1:-.}"
floe=$bin/floe
data=runs/demo-data
number=0
# What is typed in the checkout itself is short.
configs=$share/configs descriptions=$share/examples/demo
if [[ $PWD -ef $share ]]; then configs=configs descriptions=examples/demo; fi

# announce WHAT COMMAND...: says what comes, and shows the command as one would type it.
announce() {
  number=$((number + 1))
  printf '\n%d. %s\n   $' "$number" "$1"
  shift
  local word
  for word in "$@"; do
    word=${word#"$bin"/}
    if [[ $word == *[!A-Za-z0-9_=./-]* ]]; then word="'$word'"; fi
    printf ' %s' "$word"
  done
  printf '\n\n'
}

# step WHAT COMMAND...: announces it and runs it.
step() {
  announce "$@"
  shift
  "$@"
}

# Only what an earlier demo has left is removed; drawing.txt is its own.
if [[ ! -e $data/drawing.txt ]]; then
  for folder in runs/demo runs/demo-lm "$data"; do
    [[ ! -e $folder ]] || fail "$PWD/$folder is there and not from an earlier demo; move it away, or name another folder to work in"
  done
fi
mkdir -p runs
rm -rf runs/demo runs/demo-lm "$data"

step "A small data set: drawings with captions, pages with drawings, plain text, and two untrained models." \
  "$bin/demo_data" "$descriptions" "$data"
# shellcheck disable=SC2012  # for people
(cd "$data" && ls -x -T 0 -w 90 | sed 's/^/   /')

step "A language model learns to write from plain text, on two ranks." \
  "$floe" launch -n 2 -- train "$configs/demo_lm.yaml"
step "Its weights in Hugging Face's layout." \
  "$floe" export runs/demo-lm/checkpoints/last "$data/captioner"

step "A Flamingo with this language model, frozen: what each of two ranks will hold and move." \
  "$floe" plan "$configs/demo.yaml" world=2

train=("$floe" launch -n 2 -- train "$configs/demo.yaml")
announce "The Flamingo learns to look at pictures. After the first checkpoint it is killed, on purpose." "${train[@]}"
"${train[@]}" &
run=$!
until [[ -e runs/demo/checkpoints/step_100/meta.pt ]] || ! kill -0 "$run" 2>/dev/null; do sleep 0.2; done
sleep 1
kill -9 "$run" 2>/dev/null || true
wait "$run" 2>/dev/null || true
echo "(killed)"
step "The same command again: it goes on from the newest checkpoint that is whole." \
  "${train[@]}"

step "The trained part alone, as OpenFlamingo's checkpoints have it." \
  "$floe" export runs/demo/checkpoints/last "$data/flamingo.safetensors" --trainable-only
cat > "$data/model.yaml" <<END
type: flamingo
lm: captioner
vision: vision
weights: flamingo.safetensors
cross_attn_every_n_layers: 1
perceiver: {depth: 2, dim_head: 16, heads: 4, num_latents: 8, ff_mult: 2}
cross_attn: {dim_head: 16, heads: 4, ff_mult: 2}
END
step "What does $data/drawing.jpg show? (It is: $(cat "$data/drawing.txt").)" \
  "$floe" generate "$data/model.yaml" --prompt '<image>' --image "$data/drawing.jpg" --max-new-tokens 8

step "A page about the run, with its curves: open it in a browser." \
  "$floe" report runs/demo
echo
python3 - runs/demo/metrics.jsonl <<'END' 2>/dev/null || true
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
first, last = steps[0], steps[-1]
print(f"The loss fell from {first['loss_laion']:.2f} to {last['loss_laion']:.2f} (pairs) "
      f"and from {first['loss_mmc4']:.2f} to {last['loss_mmc4']:.2f} (pages) in {last['step']} steps.")
END
if [[ $configs != configs ]]; then echo "Everything is in $PWD/runs."; fi
echo "Next: docs/your-own-data.md trains your own data; examples/shard_mlp.cc shards a model of your own."
