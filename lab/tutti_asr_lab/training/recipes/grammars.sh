#!/usr/bin/env bash
# Make the shipped grammars: digits, English and Mandarin, and spelled codes of English letters and digits.
#
# Makes:  en-digits.arpa, zh-digits.arpa and en-alphanumeric.arpa in model/weights/grammars
# Takes:  seconds
# Needs:  nothing else
set -euo pipefail
source "$(dirname "$0")/common.sh"

for language in en zh; do
  "$BIN/python" -m tutti_asr_lab.training.synthesis.digits "$language" "build/digits-$language.txt"
  "$BIN/tutti" lm train "build/digits-$language.txt" --order 2 --digits 3 --mix none \
    --out "model/weights/grammars/$language-digits.arpa"
done
"$BIN/python" -m tutti_asr_lab.training.synthesis.digits codes build/codes.txt
"$BIN/tutti" lm train build/codes.txt --order 4 --digits 3 --mix none --prune 1e-4 \
  --out model/weights/grammars/en-alphanumeric.arpa
