# make demo   classify handwritten digits on every backend
# make test   lint, and all the tests, also against the installed wheel
# Both set everything up first: the GL libraries (by apt), a virtual environment, the package.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Debian keeps the venv module in a package of its own.
SYSTEM = $(shell $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || echo python3 python3-venv)
GL := libegl1 libgles2 libgl1-mesa-dri
TEST_SYSTEM := xvfb xauth libgl1 libglx-mesa0 glslang-tools

.PHONY: demo test lint check check-es31 check-es30 check-gl33 check-wheel check-threads clean gl \
    test-system

demo: gl $(VENV)/demo.stamp
	$(BIN)/python examples/01_digits.py

test: lint check check-es31 check-es30 check-gl33 check-wheel

lint: gl $(VENV)/test.stamp
	$(BIN)/ruff check glnn tests benchmarks examples
	$(BIN)/ruff format --check glnn tests benchmarks examples
	$(BIN)/mypy

check: test-system $(VENV)/test.stamp
	$(BIN)/python -m pytest -n auto

# True contexts of older versions: Mesa says so, and then has nothing newer.
check-es31: test-system $(VENV)/test.stamp
	MESA_GLES_VERSION_OVERRIDE=3.1 $(BIN)/python -m pytest -n auto -k 'not OpenGL' \
	    tests/backends tests/models

check-es30: test-system $(VENV)/test.stamp
	MESA_GLES_VERSION_OVERRIDE=3.0 $(BIN)/python -m pytest -n auto -k 'not OpenGL' \
	    tests/backends tests/models

# Desktop GL 3.3, which has no compute shaders, by a hidden window: EGL finds no vendor there.
check-gl33: test-system $(VENV)/test.stamp
	__EGL_VENDOR_LIBRARY_FILENAMES=/nowhere MESA_GL_VERSION_OVERRIDE=3.3 \
	    MESA_GLES_VERSION_OVERRIDE=3.0 xvfb-run -a $(BIN)/python -m pytest -n auto \
	    -k 'not OpenGL' tests/backends tests/models

# The wheel, installed, tested from a folder outside the repository; its kernels one by one have been
# tested by then.
check-wheel: test-system $(VENV)/test.stamp
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel . >build/wheel/log 2>&1 \
	    || { cat build/wheel/log; exit 1; }
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip --disable-pip-version-check install -q \
	    "$$(echo build/wheel/*.whl)[test]"
	here=$$PWD; outside=$$(mktemp -d); trap 'rm -rf "$$outside"' EXIT; \
	    cp -r tests examples docs "$$outside" && cd "$$outside" && \
	    "$$here/build/wheel/venv/bin/python" -m pytest -q -n auto --ignore tests/backends tests

# 2,000 requests to a threaded server on each GL backend: how many MiB it grows, and what was wrong.
# The tests have a smaller part of it.
check-threads: gl $(VENV)/test.stamp
	for backend in compute feedback; do \
	    $(BIN)/python tests/server.py $$backend 2000 || exit 1; done

gl:
	@.ci/need $(SYSTEM) $(GL)

test-system: gl
	@.ci/need $(TEST_SYSTEM)

$(VENV)/bin/python: | gl
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/demo.stamp: pyproject.toml | gl $(VENV)/bin/python
	$(PIP) install -e '.[images]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml | gl $(VENV)/bin/python
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/demo.stamp

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
