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
# One task per machine starts torchrun, which starts a process per GPU. Both machines must see the run folder; a job
# that was stopped continues from its latest checkpoint. NCCL and gloo use the interface that leads to the first machine;
# to choose another one: export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \
  --rdzv-endpoint "$first:29500" -m longrm train preference \
  --config recipes/scale/2x8.toml --out runs/2x8
