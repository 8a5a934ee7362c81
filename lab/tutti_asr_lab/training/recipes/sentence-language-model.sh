#!/usr/bin/env bash
# Train the recurrent language model that rescores accurate finals, on the texts of word-language-model.sh.
#
# Makes:  build/sentences/floats.safetensors and build/sentences/tutti-sentences.safetensors (8-bit integers)
# Takes:  an hour on two cores with bf16
# Needs:  what word-language-model.sh needs; transcripts in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # waiting threads sleep, so that other work gets the core

[ -e build/lm/held-out.text ] ||
  "$BIN/python" -m tutti_asr_lab.training.language_model.gathering.texts build/lm --data "$DATA" --text "$TEXT"

texts=() # FILE, or FILE:N to read it N times
for name in novels chitchat sotu moby_dick factbook austen bible commands wordnet; do texts+=("build/lm/$name.txt"); done
for name in prompts commonvoice librispeech everyday; do texts+=("build/lm/$name.txt:4"); done
texts+=(build/lm/numbers.txt:20)
"$BIN/python" -m tutti_asr_lab.training.language_model.recurrent.train "${texts[@]}" --held-out build/lm/held-out.text \
  --out build/sentences/floats.safetensors
"$BIN/python" -m tutti_asr_lab.training.language_model.recurrent.quantize build/sentences/floats.safetensors \
  --text build/lm/prompts.txt --out build/sentences/tutti-sentences.safetensors
"$BIN/python" -m tutti_asr_lab.training.language_model.recurrent.tune build/sentences/tutti-sentences.safetensors \
  --manifest "$DATA/dev.jsonl"

cat <<END
To ship it: copy it and its .json to model/weights, then renew SHA256SUMS, SENTENCES.md and LOG_PROBS_SHA256
(the output of python -m model.evaluation.digest).
END
