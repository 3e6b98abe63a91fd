#!/usr/bin/env bash
# The paper's stage 2 on one machine with eight GPUs; begin it again after a stop and it continues.
set -euo pipefail

torchrun --standalone --nproc-per-node 8 -m longrm train preference \
  --config recipes/scale/8-a100.toml --out runs/8-a100
