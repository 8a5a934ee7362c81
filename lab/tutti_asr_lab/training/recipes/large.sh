#!/usr/bin/env bash
# Train the large English network, which decodes ended segments again for finals=accurate, and make its 8-bit integers.
#
# Makes:  build/taught/large.safetensors (floats) and build/tutti-large-int8.safetensors
# Takes:  90 minutes on two cores. Run it again after a stop: it continues from the last snapshot.
# Needs:  what medium-taught.sh leaves in build; recordings in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # one training process a core: waiting threads sleep, so that other work gets the core

"$RECIPES/neural-speech.sh"
"$BIN/tutti" train "${english[@]}" --validation "$DATA/dev.jsonl" --noise "$DATA/noise.jsonl" \
  --manifest build/taught/neural/synthetic.jsonl \
  --init build/taught/medium-mean.safetensors --teacher small --teacher build/tutti-medium-int8.safetensors \
  --recipe "$PARAMETERS/large.json" --out build/taught/large.safetensors

FLOATS=build/taught/large.safetensors INTEGERS=build/tutti-large-int8.safetensors "$RECIPES/quantize.sh"
