#!/usr/bin/env bash
# Train one model on all GPUs of four nodes. Each GPU has a process of its own: under SLURM, JAX gives it just that one.
#   sbatch slurm.sh
# If a node fails, or the time is over, SLURM puts the job back into the queue, and it goes on from its last checkpoint.
#SBATCH --job-name=sdebnn
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# A folder that all nodes see. The first process writes checkpoints there.
run=${RUN:-$HOME/runs/cifar10}

# --kill-on-bad-exit: when one process ends, end the others, too; they would end by themselves within a minute.
code=0
srun --kill-on-bad-exit=1 \
    sdebnn train --data cifar10 --preset ours --out "$run" --resume --cluster \
    || code=$?

# Go on after a lost process (75, or 134 if JAX ends it), and after the warning before the end of the time (143).
case $code in
    75 | 134 | 143) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
