#!/usr/bin/env bash
# Gather books and other text, train the shipped punctuation tagger, and measure it.
#
# Makes:  model/weights/tutti-punctuation.safetensors, loadtest/results/punctuation.*
# Takes:  an hour on one core
# Needs:  the books' git repositories in BOOKS, by name, bare or not; missing ones are cloned. Transcripts in DATA
#         (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
BOOKS=${BOOKS:-build/punctuation/books}

"$BIN/python" -m tutti_asr_lab.training.punctuation.texts build/punctuation --books "$BOOKS" --data "$DATA"
"$BIN/python" -m tutti_asr_lab.training.punctuation.train build/punctuation --out model/weights/tutti-punctuation.safetensors
"$BIN/python" -m tutti_asr_lab.training.punctuation.evaluate build/punctuation --out loadtest/results/punctuation
