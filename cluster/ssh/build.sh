#!/usr/bin/env bash
# Once, on a machine that reaches the hosts:  ./build.sh run.yaml
set -euo pipefail
hosts=${HOSTS:-$(dirname "$0")/hosts}

exec zindex build "$1" --cluster ssh --hosts "$(paste -sd, "$hosts")" "${@:2}"
