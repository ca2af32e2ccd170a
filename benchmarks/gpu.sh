#!/bin/sh
# Check and measure on a GPU: benchmarks/gpu.sh [STAGE...] [options of `python -m benchmarks.gpu`]
# Needs a Python with torch ($PYTHON, else python3, else .venv/), and takes other packages from the wheels in the folder
# $BYTELM_WHEELS. Uses no network.
set -eu
cd "$(dirname "$0")/.."
has_torch() { "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; }
if [ -z "${PYTHON:-}" ]; then
    for PYTHON in python3 .venv/bin/python; do
        if has_torch "$PYTHON"; then break; fi
    done
fi
has_torch "$PYTHON" || { echo "no Python with torch: give PYTHON=..., or make setup" >&2; exit 1; }
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
if [ -n "${BYTELM_WHEELS:-}" ]; then
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$packages" "$BYTELM_WHEELS"/*.whl
    export PYTHONPATH="$packages:$PYTHONPATH"
fi
"$PYTHON" -m benchmarks.gpu "$@"
