#!/usr/bin/env bash
# Three trainings in turn, on all GPUs of this machine, or on two CPU processes where there is none:
#   1. basic: DistributedDataParallel
#   2. checkpoint: the same, stopped in the middle by SIGTERM and resumed to the end
#   3. model parallel: a pipeline of two stages, then FSDP; the pipeline needs an even number of devices
# Needs torchrun (or TORCHRUN="python3 -m torch.distributed.run"); writes to the folder that it is given, or a new one.
set -euo pipefail -o noclobber # the log is a new file, never one that a link of another user leads to
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
read -ra torchrun <<<"${TORCHRUN:-torchrun}"
export RSMI_MUTEX_THREAD_ONLY=1 # AMD's library would lock in a file that each user may write to
export PYTHONSAFEPATH=1 # nothing is imported from the working folder, where others may have put a torch.py
count='import sys; sys.path[:1] == [""] and sys.path.pop(0); import torch; print(torch.cuda.device_count())' # Python 3.10
gpus=$("${PYTHON:-python3}" -W ignore -c "$count")
ranks=$((gpus > 0 ? gpus : 2))
echo "$gpus GPUs: $ranks ranks; files in $folder"
# With a port torchrun keeps its store by itself. With --standalone, or neither, it executes a pickle that anybody who
# reaches that store has written there.
port() { "${PYTHON:-python3}" -I -c 'import socket; s = socket.create_server(("", 0)); print(s.getsockname()[1])'; }
start() { "${torchrun[@]}" --master-port "$(port)" --nproc-per-node "$@"; }

echo "== 1. basic"
start "$ranks" "$examples/ddp.py" --epochs 2 --checkpoint-dir "$folder/basic"

echo "== 2. checkpoint"
rm -f "$folder/first.log"
# Not by the function: a signal would reach the shell that runs it, and not torchrun.
"${torchrun[@]}" --master-port "$(port)" --nproc-per-node "$ranks" \
  "$examples/ddp.py" --checkpoint-dir "$folder/checkpoint" \
  >"$folder/first.log" 2>&1 &
first=$!
trap 'kill "$first" 2>/dev/null || true' EXIT
until grep -q '^epoch 1:' "$folder/first.log"; do
  kill -0 "$first" 2>/dev/null || { cat "$folder/first.log"; exit 1; }
  sleep 0.1
done
kill -TERM "$first" 2>/dev/null || true # torchrun passes it on to all ranks
wait "$first" || echo "stopped, as asked; last.pt has all that was done"
trap - EXIT
grep '^epoch' "$folder/first.log"
start "$ranks" "$examples/ddp.py" --checkpoint-dir "$folder/checkpoint"

echo "== 3. model parallel"
if ((ranks % 2 == 0)); then
  start "$ranks" "$examples/pipeline.py"
elif ((ranks > 1)); then
  start $((ranks - 1)) "$examples/pipeline.py"
else
  echo "one GPU: a pipeline needs two; left out"
fi
start "$ranks" "$examples/fsdp.py" --checkpoint "$folder/fsdp.pt"
echo "== done"
