#!/usr/bin/env bash
# Synthesize Mandarin sentences with neural voices.
#
# Makes:  build/mandarin/neural (0.71 hours) and build/mandarin/neural-again (1.23 hours); nothing that is there
# Takes:  an hour on two cores
# Needs:  what voices.sh needs; what mandarin-language-model.sh leaves in build/mandarin/text
set -euo pipefail
source "$(dirname "$0")/common.sh"

"$RECIPES/voices.sh"
synthesize() { # NAME HOURS SEED
  [ -e "build/mandarin/$1/synthetic.jsonl" ] || "$BIN/tutti" synthesize "build/mandarin/$1" --hours "$2" --seed "$3" \
    --mandarin build/mandarin/text --neural
}
synthesize neural 0.71 1
synthesize neural-again 1.23 2
