#!/usr/bin/env bash
# Train the medium English model, a teacher of small-taught.sh, from the small one's floats; make its 8-bit integers.
#
# Makes:  build/tutti-medium.safetensors (floats) and build/tutti-medium-int8.safetensors
# Takes:  90 minutes on two cores. Run it again after a stop: it continues from the last snapshot.
# Needs:  what small.sh leaves in build; recordings in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # one training process a core: waiting threads sleep, so that other work gets the core

"$BIN/tutti" train "${english[@]}" --validation "$DATA/dev.jsonl" --noise "$DATA/noise.jsonl" \
  --manifest build/synthetic-1/synthetic.jsonl --manifest build/synthetic-2/synthetic.jsonl \
  --init build/tutti-gru.safetensors --recipe "$PARAMETERS/medium.json" --out build/tutti-medium.safetensors

FLOATS=build/tutti-medium.safetensors INTEGERS=build/tutti-medium-int8.safetensors "$RECIPES/quantize.sh"
