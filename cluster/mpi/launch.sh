#!/usr/bin/env bash
# Once, on the first node:  ./launch.sh train.py ...
set -euo pipefail
hostfile=${HOSTFILE:-$(dirname "$0")/hostfile}

# The rendezvous of torch.distributed; zindex reads Open MPI's own variables.
export MASTER_ADDR=${MASTER_ADDR:-$(awk '{ print $1; exit }' "$hostfile")}
export MASTER_PORT=${MASTER_PORT:-29500}

# Ranks bound to one processor would bind the workers that they start.
exec mpirun --hostfile "$hostfile" --bind-to none \
    -x MASTER_ADDR -x MASTER_PORT -x PATH -x PYTHONPATH \
    python "$@"
