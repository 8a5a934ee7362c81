#!/usr/bin/env bash
# Learn which short segments only acknowledge, from synthetic speech and the recordings of the English models.
#
# Makes:  tutti.acknowledgements.json in model/weights
# Takes:  half an hour on two cores
# Needs:  espeak-ng, flite, npm
set -euo pipefail
source "$(dirname "$0")/common.sh"
OUT=build/acknowledgements
LEARN=("$BIN/python" -m tutti_asr_lab.training.acknowledgements)

"$RECIPES/voices.sh"
[ -e $OUT/formant/manifest.jsonl ] || "${LEARN[@]}" synthesize "${english[@]}" --out $OUT/formant --count 6500
[ -e $OUT/kokoro/manifest.jsonl ] || "${LEARN[@]}" synthesize "${english[@]}" --out $OUT/kokoro --count 360 --voices kokoro
"${LEARN[@]}" learn --manifest $OUT/formant/manifest.jsonl --manifest $OUT/kokoro/manifest.jsonl "${english[@]}" \
  --manifest "$DATA/dev.jsonl" --out model/weights/tutti.acknowledgements.json
