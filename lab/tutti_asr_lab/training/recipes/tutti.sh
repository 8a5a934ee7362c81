#!/usr/bin/env bash
# Train the default English model: hama's weights, fine-tuned on all recordings in two runs, then 8-bit integers.
#
# Makes:  build/tutti/last/average.pt (floats) and build/tutti/tutti.safetensors
# Takes:  two hours on two cores with bf16. Run it again after a stop: it continues from the last snapshot.
# Needs:  espeak-ng and flite; recordings in DATA (common.sh); downloads 10 MB from PyPI
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_NUM_THREADS=1
WHEEL=build/hama/hama-1.7.0-py3-none-any.whl # its SHA-256 is checked
FINE_TUNING=lab/tutti_asr_lab/training/attention
SYNTHETIC=build/tutti/synthetic

[ -e "$WHEEL" ] || "$BIN/python" -m pip download --quiet --disable-pip-version-check --no-deps -d build/hama hama==1.7.0
[ -e "$SYNTHETIC/synthetic.jsonl" ] || "$BIN/tutti" synthesize "$SYNTHETIC" --hours 2.5 --seed 1

fine_tune() {
  "$BIN/python" -m tutti_asr_lab.training.attention.train "${english[@]}" --noise "$DATA/noise.jsonl" "$@"
}
fine_tune --hama "$WHEEL" --out build/tutti/first "$FINE_TUNING/first.json"
fine_tune --init build/tutti/first/average.pt --manifest "$SYNTHETIC/synthetic.jsonl" --out build/tutti/last "$FINE_TUNING/last.json"
"$BIN/python" -m tutti_asr_lab.training.attention.quantize build/tutti/last \
  --mean build/tutti/first/average.pt 0.4 --mean build/tutti/first/average-600.pt 0.2 \
  --manifest "$DATA/commonvoice_en.jsonl" --manifest "$DATA/librispeech_devclean_mp3.jsonl" \
  --manifest "$DATA/speechocean762.jsonl" --validation "$DATA/dev.jsonl" --out build/tutti/tutti.safetensors
