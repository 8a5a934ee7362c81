#!/usr/bin/env bash
# Convert the Mandarin training speech to other voices and tempos; words are joined into something like sentences.
#
# Makes:  build/mandarin/converted/NAME/converted.jsonl and its recordings; nothing that is there
# Takes:  ten minutes on two cores
# Needs:  what mandarin-language-model.sh leaves in build/mandarin/speech
set -euo pipefail
source "$(dirname "$0")/common.sh"
M=build/mandarin

convert() { # NAME TIMES JOINED TEMPO
  [ -e "$M/converted/$1/converted.jsonl" ] || "$BIN/python" -m tutti_asr_lab.training.synthesis.voice_conversion \
    "$M/speech/train-$1.jsonl" --times "$2" --joined "$3" --tempo "$4" --out "$M/converted/$1"
}
convert aishell_sample 5 1 1.0,1.7
convert mandarin_cv 2 1 0.9,1.3
convert cmn_words 2 6 1.1,1.9
convert cmn_syllables 1 4 1.2,2.2
