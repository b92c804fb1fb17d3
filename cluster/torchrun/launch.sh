#!/usr/bin/env bash
# On every node:  NODE_RANK=0 ./launch.sh train.py ...
set -euo pipefail
source "$(dirname "$0")/nodes.env"

exec torchrun \
    --nnodes "$NUM_NODES" --node-rank "${NODE_RANK:?is 0 on the first node, 1 on the next, ...}" \
    --nproc-per-node "$RANKS_PER_NODE" --rdzv-id "$RUN_ID" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
    -- "$@"
