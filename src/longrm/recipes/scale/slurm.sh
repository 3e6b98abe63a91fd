#!/usr/bin/env bash
#SBATCH --job-name=longrm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=longrm-%j.log
# The paper's stage 2 on two machines with eight GPUs each: sbatch recipes/scale/slurm.sh
# One task a machine starts torchrun, which starts a process a GPU. The run folder lies where both machines see it; a
# job that was stopped continues from its latest checkpoint. gloo speaks over the interface that leads to the first
# machine; where NCCL or it should take another: export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \
  --rdzv-endpoint "$first:29500" -m longrm train preference \
  --config recipes/scale/2x8.toml --out runs/2x8
