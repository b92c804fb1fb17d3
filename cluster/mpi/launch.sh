#!/usr/bin/env bash
# Once, on the first node:  ./launch.sh train.py ...
set -euo pipefail
hostfile=${HOSTFILE:-$(dirname "$0")/hostfile}

# Where torch.distributed meets; zindex finds its place in Open MPI's own variables.
export MASTER_ADDR=${MASTER_ADDR:-$(awk '{ print $1; exit }' "$hostfile")}
export MASTER_PORT=${MASTER_PORT:-29500}

# Ranks that are bound to one processor would bind what they start, the workers too.
exec mpirun --hostfile "$hostfile" --bind-to none \
    -x MASTER_ADDR -x MASTER_PORT -x PATH -x PYTHONPATH \
    python "$@"
