# Paths, and the recordings that the English models learn from. Sourced by the scripts in this folder; not a program.
#
# Every script runs in the root of the checkout, so relative paths start there. Set these variables to change them:
#   BIN   programs of the environment that `make setup` makes
#   DATA  manifests of recordings: NAME.jsonl for each source below, dev.jsonl (validation), noise.jsonl
#   TEXT  texts for language models
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."
BIN=${BIN:-.venv/bin}
DATA=${DATA:-../shared/data}
TEXT=${TEXT:-../shared/text}
RECIPES=lab/tutti_asr_lab/training/recipes          # scripts
PARAMETERS=lab/tutti_asr_lab/training/acoustic/recipes # sizes and hyperparameters, as `tutti train --recipe` reads them

[ -x "$BIN/tutti" ] || { echo "no $BIN/tutti: run make setup, or set BIN" >&2; exit 1; }

sources=(commonvoice_en commonvoice_en2 librispeech_devclean_mp3 librispeech_tc100 ljspeech kathleen_arctic
  speechocean762 fsdd_digits alnum_numbers mycroft_words wakewords_picovoice)
english=() # --manifest options of all real English speech
for name in "${sources[@]}"; do english+=(--manifest "$DATA/$name.jsonl"); done
