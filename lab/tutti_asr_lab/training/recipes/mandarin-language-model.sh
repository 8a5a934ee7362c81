#!/usr/bin/env bash
# Gather Mandarin speech and text, and make the shipped n-grams of characters, their readings, and the digit grammars.
#
# Makes:  build/mandarin/speech (manifests), build/mandarin/text, model/weights/tutti-characters.arpa.gz,
#         model/weights/tutti-characters.lexicon.gz, model/weights/grammars
# Takes:  a part of the four hours of mandarin.sh, which runs this
# Needs:  a network, for libime's model at LIBIME_URL; speech in DATA, texts in TEXT/zh (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
M=build/mandarin
LIBIME=libime_1.0.16.orig.tar.xz
LIBIME_URL=${LIBIME_URL:-https://deb.debian.org/debian/pool/main/libi/libime/$LIBIME}
LIBIME_SHA256=3f034ae347b4110ac3dfb88d678a38d2264e6588d61f249b9007a7759751b2f9

"$BIN/python" -m tutti_asr_lab.training.mandarin.speech "$M/speech" --data "$DATA"

if [ ! -e "$M/lm_sc.arpa" ]; then
  curl -fsSL -o "$M/$LIBIME" "$LIBIME_URL"
  echo "$LIBIME_SHA256  $M/$LIBIME" | sha256sum --check --quiet
  tar xJOf "$M/$LIBIME" --wildcards '*/data/lm_sc.arpa-*.tar.xz' | tar xJ -C "$M" lm_sc.arpa
fi
"$BIN/python" -m tutti_asr_lab.training.mandarin.texts "$M/text" --text "$TEXT/zh" --speech "$M/speech" --ngrams "$M/lm_sc.arpa"

"$BIN/tutti" lm train "$M/text/drawn.txt:0.64" "$M/text/prompts.txt:0.12" "$M/text/speech.txt:0.10" \
  "$M/text/digits.txt:0.07" "$M/text/commands.txt:0.07" --order 4 --min-count 1,1,2,2 --digits 3 --out "$M/large.arpa.gz"
"$BIN/tutti" lm prune "$M/large.arpa.gz" --threshold 2.7e-8 --digits 2 --out model/weights/tutti-characters.arpa.gz

"$RECIPES/grammars.sh"
"$BIN/python" -m tutti_asr_lab.training.lexicon.characters --lm model/weights/tutti-characters.arpa.gz \
  --out model/weights/tutti-characters.lexicon.gz
