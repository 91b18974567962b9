#!/usr/bin/env bash
# Analyses an Nsight Systems profile of a Megatron job from the command line.
#
#   bash examples/megatron/analyse_profile.sh [PROFILE.sqlite]
#
# Without an argument it makes a small synthetic export first, in the shape of a published Megatron case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

profile=${1:-}
if [ -z "$profile" ]; then
  profile=$(mktemp -d)/megatron.sqlite
  python scripts/make_nsight.py "$profile"
fi

echo "== all devices side by side, one in full"
overlapwatch report "$profile"

echo "== one device for scripts: hidden and exposed by phase and kind"
overlapwatch report "$profile" --device 1 --json | python -c '
import json, sys

row = "{:<10}{:<15}{:>6} times   hidden {:8.1f} ms   exposed {:8.1f} ms"
for cell in json.load(sys.stdin)["timelines"][0]["phases"]["cells"]:
    times = cell["overlap_ns"] / 1e6, cell["exposed_ns"] / 1e6
    print(row.format(cell["phase"], cell["kind"], cell["count"], *times))'
