#!/usr/bin/env bash
# Synthesize English sentences with neural voices, for small-taught.sh, which runs this.
#
# Makes:  build/taught/neural/synthetic.jsonl and its recordings, 1.35 hours; nothing if they are there
# Takes:  45 minutes on two cores with AVX2: 1.8 times real time
# Needs:  npm, and 95 MB of downloads (voices.sh); texts in TEXT, transcripts in DATA (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"

"$RECIPES/voices.sh"
[ ! -e build/taught/neural/synthetic.jsonl ] || exit 0

"$BIN/python" -m tutti_asr_lab.training.synthesis.reading build/taught/texts.txt --data "$DATA" --text "$TEXT"
"$BIN/tutti" synthesize build/taught/neural --hours 1.35 --seed 21 --texts build/taught/texts.txt --neural
