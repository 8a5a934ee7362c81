#!/usr/bin/env bash
# Make the shipped Mandarin model from the English one: language model, speech, seven training runs, 8-bit integers.
#
# Makes:  build/tutti-mandarin.safetensors (floats), build/tutti-mandarin-int8.safetensors, and what
#         mandarin-language-model.sh makes
# Takes:  four hours on two cores. Run it again after a stop: it continues from the last snapshot.
# Needs:  espeak-ng, npm; speech in DATA, texts in TEXT (common.sh)
set -euo pipefail
source "$(dirname "$0")/common.sh"
export OMP_WAIT_POLICY=passive # one training process a core: waiting threads sleep, so that other work gets the core
M=build/mandarin

"$RECIPES/mandarin-language-model.sh"
[ -e "$M/synthetic/synthetic.jsonl" ] ||
  "$BIN/tutti" synthesize "$M/synthetic" --hours 5 --seed 1 --mandarin "$M/text"

real=() converted=()
for name in aishell_sample cmn_words cmn_syllables mandarin_cv; do
  real+=(--manifest "$M/speech/train-$name.jsonl")
  converted+=(--manifest "$M/converted/$name/converted.jsonl")
done
synthetic=(--manifest "$M/synthetic/synthetic.jsonl")
train() { # on real speech, and what is given
  "$BIN/tutti" train "${real[@]}" --noise "$DATA/noise.jsonl" --validation "$M/speech/dev-syllables.jsonl" "$@"
}
mean() { "$BIN/python" -m tutti_asr_lab.training.acoustic.averaging "$@"; }

# 1 and 2: real and espeak-ng's speech, from the weights of the English model.
train "${synthetic[@]}" --init model/weights/tutti-gru.safetensors --recipe "$PARAMETERS/mandarin.json" \
  --out "$M/1.safetensors"
train "${synthetic[@]}" --init "$M/1.safetensors" --recipe "$PARAMETERS/mandarin-again.json" --out "$M/2.safetensors"

# 3 and 4: with the recordings in other voices.
"$RECIPES/mandarin-converted-speech.sh"
train "${synthetic[@]}" "${converted[@]}" --init "$M/2.safetensors" --recipe "$PARAMETERS/mandarin-voices.json" \
  --out "$M/3.safetensors"
mean "$M/2.safetensors" "$M/3.safetensors" --out "$M/mean.safetensors"
train "${synthetic[@]}" "${converted[@]}" --init "$M/mean.safetensors" \
  --recipe "$PARAMETERS/mandarin-voices-again.json" --out "$M/4.safetensors"
mean "$M/2.safetensors" "$M/3.safetensors" "$M/4.safetensors" --out "$M/voices.safetensors"

# 5 to 7: with neural voices.
"$RECIPES/mandarin-neural-speech.sh"
train "${synthetic[@]}" --manifest "$M/neural/synthetic.jsonl" --init "$M/voices.safetensors" \
  --recipe "$PARAMETERS/mandarin-neural.json" --out "$M/5.safetensors"
mean "$M/voices.safetensors" "$M/5.safetensors" --out "$M/neural.safetensors"
train "${converted[@]}" --manifest "$M/neural-again/synthetic.jsonl" --init "$M/neural.safetensors" \
  --recipe "$PARAMETERS/mandarin-neural-again.json" --out "$M/6.safetensors"
mean "$M/neural.safetensors" "$M/6.safetensors" --shares 1 2 --out "$M/again.safetensors"
train "${converted[@]}" --manifest "$M/neural-again/synthetic.jsonl" --init "$M/again.safetensors" \
  --recipe "$PARAMETERS/mandarin-neural-last.json" --out "$M/7.safetensors"
mean "$M/again.safetensors" "$M/7.safetensors" --out build/tutti-mandarin.safetensors

"$BIN/tutti" quantize build/tutti-mandarin.safetensors "${real[@]}" --seed 1 --out build/tutti-mandarin-int8.safetensors
