#!/usr/bin/env bash
# Make an 8-bit checkpoint of an English model, as it ships, from its trained floats.
#
# Makes:  INTEGERS, by default build/tutti-gru-int8.safetensors
# Takes:  minutes
# Needs:  FLOATS, by default build/tutti-gru.safetensors; recordings in DATA (common.sh). SEED chooses the recordings
#         of the calibration; results of other seeds: model/LOG.md
set -euo pipefail
source "$(dirname "$0")/common.sh"
FLOATS=${FLOATS:-build/tutti-gru.safetensors}
INTEGERS=${INTEGERS:-build/tutti-gru-int8.safetensors}
SEED=${SEED:-1}

"$BIN/tutti" quantize "$FLOATS" "${english[@]}" --validation "$DATA/dev.jsonl" --seed "$SEED" --out "$INTEGERS"

cat <<END
To ship $INTEGERS:
  1. copy it and its .json to model/weights as tutti-gru
  2. cd model/weights
  3. write the output of python -m model.evaluation.digest to LOG_PROBS_SHA256
  4. sha256sum *.json *.safetensors *.arpa.gz *.lexicon.gz > SHA256SUMS
END
