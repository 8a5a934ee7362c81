#!/usr/bin/env bash
# Last run of the medium English model, of which the large one was made: distillation from the mean of the small and the medium one.
#
# Makes:  build/taught/medium-mean.safetensors (floats) and build/tutti-medium-int8.safetensors
# Takes:  half an hour on two cores. Run it again after a stop: it continues from the last snapshot.
# Needs:  what medium.sh leaves in build; what neural-speech.sh needs; recordings in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # one training process a core: waiting threads sleep, so that other work gets the core

"$RECIPES/neural-speech.sh"
"$BIN/tutti" train "${english[@]}" --validation "$DATA/dev.jsonl" --noise "$DATA/noise.jsonl" \
  --manifest build/taught/neural/synthetic.jsonl \
  --init build/tutti-medium.safetensors --teacher small --teacher build/tutti-medium.safetensors \
  --recipe "$PARAMETERS/medium-taught.json" --out build/taught/medium-alone.safetensors
"$BIN/python" -m tutti_asr_lab.training.acoustic.averaging build/tutti-medium.safetensors build/taught/medium-alone.safetensors \
  --shares 1 1 --out build/taught/medium-mean.safetensors

FLOATS=build/taught/medium-mean.safetensors INTEGERS=build/tutti-medium-int8.safetensors "$RECIPES/quantize.sh"
