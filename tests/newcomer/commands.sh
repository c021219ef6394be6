# The commands of the README and of the documentation, in an empty folder.
set -eu
hocket doctor
hocket tune run -n 2 --backends shm,gloo --sizes 16,64KiB --beside-others -o table.json
hocket tune show table.json
hocket explain all_reduce 64KiB --table table.json
hocket pipeline draw chimera -n 4 -m 4 -o chimera.png
hocket pipeline simulate chimera -n 4 -m 4
hocket bench run all_reduce --library shm --min 8 --max 64 --budget 3
hocket simulate gpt-345m -n 64 --latency 2 --bandwidth 12.5
