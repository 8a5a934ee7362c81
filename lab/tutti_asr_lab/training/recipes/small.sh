#!/usr/bin/env bash
# Train the small English model from random weights: three runs, then 8-bit integers. small-taught.sh follows it.
#
# Makes:  build/tutti-gru.safetensors (floats) and build/tutti-gru-int8.safetensors
# Takes:  hours on two cores. Run it again after a stop: it continues from the last snapshot.
# Needs:  espeak-ng and flite; recordings in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # one training process a core: waiting threads sleep, so that other work gets the core

# Synthetic speech: seven hours for each of two seeds.
for seed in 1 2; do
  [ -e "build/synthetic-$seed/synthetic.jsonl" ] || "$BIN/tutti" synthesize "build/synthetic-$seed" --hours 7 --seed "$seed"
done

train() {
  "$BIN/tutti" train "${english[@]}" --validation "$DATA/dev.jsonl" --noise "$DATA/noise.jsonl" \
    --manifest build/synthetic-1/synthetic.jsonl --manifest build/synthetic-2/synthetic.jsonl "$@"
}
train --out build/tutti-gru-1.safetensors
train --init build/tutti-gru-1.safetensors --recipe "$PARAMETERS/small-again.json" --out build/tutti-gru-2.safetensors
train --init build/tutti-gru-2.safetensors --recipe "$PARAMETERS/small-last.json" --out build/tutti-gru.safetensors

"$RECIPES/quantize.sh"
