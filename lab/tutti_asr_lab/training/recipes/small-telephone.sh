#!/usr/bin/env bash
# The small English model for telephone calls: half of the recordings pass through a telephone line, and the teacher gets
# them before it. Better than the shipped model at 8 kHz, worse at 16 kHz, so it does not ship: model/LOG.md
#
# Makes:  build/telephone/mean.safetensors (floats) and build/telephone/tutti-gru-int8.safetensors
# Takes:  half an hour on two cores. Run it again after a stop: it continues.
# Needs:  recordings in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # as in small-taught.sh

"$BIN/tutti" train "${english[@]}" --validation "$DATA/dev.jsonl" --noise "$DATA/noise.jsonl" \
  --init gru --teacher gru --recipe "$PARAMETERS/small-telephone.json" --out build/telephone/alone.safetensors
"$BIN/python" -m tutti_asr_lab.training.acoustic.averaging gru build/telephone/alone.safetensors \
  --out build/telephone/mean.safetensors

FLOATS=build/telephone/mean.safetensors INTEGERS=build/telephone/tutti-gru-int8.safetensors "$RECIPES/quantize.sh"
