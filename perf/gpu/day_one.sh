#!/usr/bin/env bash
# What a first day with a GPU answers, in one command: bash perf/gpu/day_one.sh. With --dry on a CPU, with a tiny model.
# All GPUs of the machine are used where several are; PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/src:$PWD/perf/gpu${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" perf/gpu/day_one.py "$@"
