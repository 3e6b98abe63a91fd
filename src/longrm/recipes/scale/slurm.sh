#!/usr/bin/env bash
#SBATCH --job-name=longrm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=48:00:00
#SBATCH --signal=TERM@1800
#SBATCH --requeue
#SBATCH --output=longrm-%j.log
# The paper's stage 2 on two machines with eight GPUs each: sbatch src/longrm/recipes/scale/slurm.sh
# One task per machine starts torchrun, which starts a process per GPU. Both machines must see the run folder. A job that
# is preempted, or half an hour before its time is over, ends with a checkpoint after the step in progress; submit it
# again to continue. NCCL and gloo use the interface that leads to the first machine; to choose another one: export
# NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
set -euo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1800 # seconds from SIGTERM until torchrun kills its processes

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --kill-on-bad-exit=1 torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d --rdzv-endpoint "$first:29500" -m longrm train preference \
  --config scale/2x8 --out runs/2x8
