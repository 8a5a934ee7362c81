#!/usr/bin/env bash
# Make the shipped grammars of digits, English and Mandarin.
#
# Makes:  model/weights/grammars/en-digits.arpa and model/weights/grammars/zh-digits.arpa
# Takes:  seconds
# Needs:  nothing else
set -euo pipefail
source "$(dirname "$0")/common.sh"

for language in en zh; do
  "$BIN/python" -m tutti_asr_lab.training.synthesis.digits "$language" "build/digits-$language.txt"
  "$BIN/tutti" lm train "build/digits-$language.txt" --order 2 --digits 3 --mix none \
    --out "model/weights/grammars/$language-digits.arpa"
done
