#!/usr/bin/env bash
# Train the default English model: hama's weights, fine-tuned on all recordings, then 8-bit integers.
#
# Makes:  build/tutti/average.pt (floats) and build/tutti/tutti.safetensors
# Takes:  two hours on two cores with bf16. Run it again after a stop: it continues from the last snapshot.
# Needs:  espeak-ng; recordings in DATA (common.sh); downloads 10 MB from PyPI
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_NUM_THREADS=1
WHEEL=build/hama/hama-1.7.0-py3-none-any.whl # its SHA-256 is checked

[ -e "$WHEEL" ] || "$BIN/python" -m pip download --quiet --disable-pip-version-check --no-deps -d build/hama hama==1.7.0
"$BIN/python" -m tutti_asr_lab.training.attention.train lab/tutti_asr_lab/training/attention/recipe.json \
  --hama "$WHEEL" --phones model/weights/tutti-gru.json "${english[@]}" --noise "$DATA/noise.jsonl" --out build/tutti
"$BIN/python" -m tutti_asr_lab.training.attention.quantize build/tutti \
  --manifest "$DATA/commonvoice_en.jsonl" --manifest "$DATA/librispeech_devclean_mp3.jsonl" \
  --manifest "$DATA/speechocean762.jsonl" --out build/tutti/tutti.safetensors
