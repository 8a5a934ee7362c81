#!/usr/bin/env bash
# Synthesize the shipped sample recordings, which the demo, the tests and the load generator play.
#
# Makes:  model/samples: the same files, bit for bit
# Takes:  seconds
# Needs:  espeak-ng and flite
set -euo pipefail
source "$(dirname "$0")/common.sh"

"$BIN/python" -c 'from tutti_asr_lab.training.synthesis.samples import make_samples; print(make_samples())'
