#!/usr/bin/env bash
# Measures what docs/scale.md claims for GPUs, on all GPUs of this machine: bash perf/gpu/day_one.sh
# --dry --out FOLDER runs every part on a CPU with a tiny model. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/src:$PWD/perf/gpu${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" perf/gpu/day_one.py "$@"
