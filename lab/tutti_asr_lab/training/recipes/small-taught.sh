#!/usr/bin/env bash
# Last run of the small English model, which ships: distillation from the mean of the small and the medium one.
#
# Makes:  build/taught/mean.safetensors (floats) and build/tutti-gru-int8.safetensors
# Takes:  an hour on two cores. Run it again after a stop: it continues from the last snapshot.
# Needs:  what small.sh leaves in build; what neural-speech.sh needs; recordings in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # one training process a core: waiting threads sleep, so that other work gets the core

"$RECIPES/neural-speech.sh"
"$BIN/tutti" train "${english[@]}" --validation "$DATA/dev.jsonl" --noise "$DATA/noise.jsonl" \
  --manifest build/taught/neural/synthetic.jsonl \
  --init build/tutti-gru.safetensors --teacher build/tutti-gru.safetensors --teacher build/tutti-medium-int8.safetensors \
  --recipe "$PARAMETERS/small-taught.json" --out build/taught/alone.safetensors
"$BIN/python" -m tutti_asr_lab.training.acoustic.averaging build/tutti-gru.safetensors build/taught/alone.safetensors \
  --shares 2 1 --out build/taught/mean.safetensors

FLOATS=build/taught/mean.safetensors "$RECIPES/quantize.sh"
