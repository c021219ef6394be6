#!/bin/bash
# Record docs/images/mismatch.svg: termtosvg docs/images/mismatch.svg -g 100x28 -M 2500 -D 5000 -c 'bash tools/record_mismatch.sh'
# (pip install termtosvg). The program is that of docs/tutorials/mismatch.md.
cd "$(mktemp -d /tmp/tutorial-XXXX)" && trap 'rm -rf "$PWD"' EXIT
type_and_run() {
  printf '\e[32m$\e[0m '
  for ((i = 0; i < ${#1}; i++)); do printf '%s' "${1:i:1}"; sleep 0.04; done
  sleep 0.4
  printf '\n'
  eval "$1"
  sleep 2
}
cat > mismatch.py <<'END'
import numpy as np
import hocket as hk

comm = hk.init()
gradient, mean = np.ones(1000, np.float32), np.ones(1, np.float32)

def log_progress():
    comm.all_reduce(mean, "avg")

def step():
    comm.all_reduce(gradient)

if comm.rank == 0:  # the mistake: only rank 0 logs
    log_progress()
step()
END
type_and_run "cat mismatch.py"
type_and_run "hocket run -n 2 mismatch.py"
