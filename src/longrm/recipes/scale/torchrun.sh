#!/usr/bin/env bash
# The paper's stage 2 on one machine with eight GPUs; begin it again after a stop and it continues.
# SIGTERM ends it with a checkpoint after the step in progress.
set -euo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1800 # seconds from SIGTERM until torchrun kills its processes

torchrun --standalone --nproc-per-node 8 --max-restarts 3 -m longrm train preference \
  --config scale/8-a100 --out runs/8-a100
