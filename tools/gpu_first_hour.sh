#!/usr/bin/env bash
# gpu_first_hour.sh [PART...|list|pack]: everything that only a GPU can show, on the first machine that has one.
#
# It needs torch, one GPU, this folder, and nothing else: no network, no installation. Parts run alone and in any order,
# and each writes its result at once. Without arguments: all parts, then `pack`, which writes one archive with one summary.
#
#   PYTHON        the Python with torch; python3
#   OUT           folder of the results and the archive, which nobody else can exchange or write to; gpu-first-hour
#   SMALL=1       sizes for a trial on a double of a device (CONTRIBUTING.md), whose figures mean nothing
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-python3} OUT=${OUT:-gpu-first-hour} SMALL=${SMALL:-} LIMIT_S=480
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SMALL OUT
umask 022
OURS=src${PYTHONPATH:+:$PYTHONPATH}
# What lies there is executed, and written by name. Later nobody but root can lead this path elsewhere.
OUT=$(PYTHONPATH=$OURS "$PYTHON" - "$OUT" <<'END'
import sys
from seatrial.folders import exchanges, make_folders
from seatrial.start import without_links
try:
    make_folders(sys.argv[1])
    print(out := without_links(sys.argv[1]))
    amiss = exchanges(out)[1]
except OSError as error:
    amiss = str(error)
if amiss:
    sys.exit(f"OUT={sys.argv[1]}: {amiss}; name a new folder that only you can change, such as OUT=~/gpu-first-hour")
END
) || exit 2
PYZ=$OUT/seatrial.pyz
# Lines that no double reaches, so that they run for the first time here: what goes wrong is most probably one of them.
UNREACHED=tests/cuda_double/not_reached.txt
PARTS="tests smoke quick standard speed images launch faults resume snapshot nccl ranks between"

# Most probable trouble first. Each function is a part; its exit code is its result.
tests() {
  mapfile -t files < <(grep -rlE --include='*.py' '= pytest\.mark\.gpu$|@pytest\.mark\.gpu$' tests)
  PYTHONPATH=tests:$OURS "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider -p no:randomly --timeout 200 "${files[@]}"
}
smoke() { trial smoke; }
quick() { trial quick; }
standard() { trial standard; }
speed() { measure speed; }
images() {
  local batch=${SMALL:+8} steps=${SMALL:+2} model=${SMALL:+convnet}
  measure loop --model "${model:-resnet18}" --batch-size "${batch:-512}" --steps "${steps:-200}" || return
  seatrial train synthetic-3x32x32 --model "${model:-resnet18}" --device cuda --nproc-per-node 1 --max-steps "${steps:-200}" \
    --global-batch-size "${batch:-512}" --out "$WORK"
}
launch() {
  local script=tests/cuda_double/launched_on_device.py
  seatrial launch --nproc-per-node 1 --output all --out "$WORK" "$script" || return
  seatrial launch --nproc-per-node 2 --device cpu --output all --out "$WORK" "$script"
}
faults() {
  planted "memory@compute:0" "out of memory" && planted "flip-product@compute:0" "wrong" &&
    planted "device@compute:0" "device error" && planted "kill@compute:0" "SIGKILL"
}
resume() {
  local recipe=(train digits --model mlp --device cuda --nproc-per-node 1 --schedule constant --out "$WORK")
  seatrial "${recipe[@]}" --max-steps 40 | tee "$WORK/whole" &&
    seatrial "${recipe[@]}" --max-steps 20 --checkpoint-dir "$WORK/saved" &&
    seatrial "${recipe[@]}" --max-steps 40 --checkpoint-dir "$WORK/saved" | tee "$WORK/resumed" || return
  local digests
  digests=$(grep -hoE '\b[0-9a-f]{64}$' "$WORK/whole" "$WORK/resumed" | sort -u)
  echo "digests: $digests"
  grep -q "resumed from the checkpoint of step 20" "$WORK/resumed" && [ "$(wc -l <<<"$digests")" = 1 ]
}
snapshot() { measure snapshot; }
nccl() {
  # A trial measures no collectives with one rank, so a training has to use NCCL.
  seatrial train digits --model mlp --device cuda --nproc-per-node 1 --max-steps 3 --comm-debug --out "$WORK" || return
  grep -rhE 'NCCL (INFO|WARN)' "$WORK" | head -n 400 | tee "$WORK/nccl.log"
  [ "$SMALL" ] || [ -s "$WORK/nccl.log" ]
}

# NCCL between several ranks, although there is one device: with another NCCL_HOSTID each rank is a host to NCCL, so
# that they meet through sockets and none is refused for sharing the device. Their kernels take turns, so their speeds
# mean nothing, and a link may be called slow, or not to be told apart.
ranks() {
  echo "--- as NCCL finds them: two ranks on one device are refused"
  together 2 run "$(plan smoke)" --device cuda --out "$WORK"
  grep -q "use the same device" "$WORK/said" || return
  echo "--- three ranks, each a host"
  HOSTS=1 together 3 run "$(plan smoke network host bootstrap collectives training)" --device cuda --out "$WORK" || return
  echo "--- the links between them"
  HOSTS=1 together 3 run "$(plan smoke links)" --device cuda --out "$WORK" || [[ $? =~ ^[13]$ ]]
}
between() {
  local small
  small=$(plan smoke bootstrap collectives training)
  amiss "kill@collectives/all_reduce:1" "SIGKILL" && amiss "hang@collectives/all_reduce:1" "rank 1" &&
    amiss "stop@training/step 5:1" "rank 1" && amiss "flip@training/step 5:1" "replica"
}
amiss() { # FAULT WORDS: the fault in one of two ranks over NCCL must end in a FAIL with these words
  echo "--- $1"
  SEATRIAL_PLANT=$1 HOSTS=1 together 2 run "$small" --device cuda --out "$WORK"
  local code=$?
  if [ "$code" != 1 ] || ! grep -q "$2" "$WORK/said"; then
    echo "planted $1: exit code $code, expected 1 and \"$2\""
    return 1
  fi
}
together() { # COUNT COMMAND...: so many ranks, as env:// starts them; what rank 0 says is in $WORK/said
  local count=$1 rank port token started=()
  shift
  port=$((20000 + RANDOM % 10000)) token=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
  for ((rank = count - 1; rank >= 0; rank--)); do
    # The token is no argument of env: every user can read those.
    SEATRIAL_TOKEN="$token" RANK="$rank" WORLD_SIZE="$count" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
      MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" env ${HOSTS:+NCCL_HOSTID="host$rank"} \
      "$PYTHON" "$PYZ" "$@" >"$WORK/said.$rank" 2>&1 &
    started+=($!)
  done
  local code=0
  wait "$!" || code=$?
  for rank in "${started[@]}"; do wait "$rank"; done
  mv "$WORK/said.0" "$WORK/said"
  cat "$WORK/said"
  return "$code"
}

seatrial() { "$PYTHON" "$PYZ" "$@"; }
measure() { PYTHONPATH=$OURS "$PYTHON" tools/gpu_measurements.py "$@"; }
plan() { # LEVEL [CHECK...]: a plan file, with small sizes for a double; with CHECKs it is for ranks that share a device
  local level=$1 checks=${*:2}
  {
    echo "level = \"$level\""
    [ -z "$checks" ] || echo "checks = [\"${checks// /\", \"}\"]"
    if [ "$SMALL" ]; then
      echo 'deadline_s = 400'
    elif [ "$level" = standard ]; then
      # Its own is longer than a part may take; a trial that is cut short still reports what it measured.
      echo 'deadline_s = 450'
    elif [ "$checks" ]; then
      echo 'deadline_s = 300' # their kernels take turns on the device
    fi
    # Ranks that share a device find it in use.
    [[ $checks != *host* ]] || printf '%s\n' '[host]' 'max_device_used_gb = 64'
    if [ "$SMALL" ]; then
      checks=${checks:-compute memory collectives training}
      [[ $checks != *compute* ]] || printf '%s\n' '[compute]' 'gpu_size = 128' 'rounds = 1' 'timeout_s = 100'
      [[ $checks != *memory* ]] ||
        printf '%s\n' '[memory]' 'gpu_copy_bytes = 16_777_216' 'host_copy_bytes = 16_777_216' 'gpu_share = 0.02'
      [[ $checks != *collectives* ]] || printf '%s\n' '[collectives]' 'gpu_sizes = [8, 65_536]'
      [[ $checks != *training* ]] || printf '%s\n' '[training]' 'max_steps = 20'
    fi
  } >"$WORK/$level.toml"
  echo "$WORK/$level.toml"
}
trial() { # LEVEL: PASS, a partial one too; on a double any verdict will do, as its speeds are those of a loaded host
  local code=0
  seatrial run "$(plan "$1")" --device cuda --out "$WORK" || code=$?
  if [ "$SMALL" ] && { [ "$code" = 1 ] || [ "$code" = 3 ]; }; then
    echo "exit code $code, on a double"
    code=0
  fi
  return "$code"
}
planted() { # FAULT WORDS: the fault must end in a FAIL with these words
  echo "--- $1"
  SEATRIAL_PLANT=$1 seatrial run "$(plan smoke)" --device cuda --nproc-per-node 1 --only compute --out "$WORK" | tee "$WORK/said"
  local code=${PIPESTATUS[0]}
  if [ "$code" != 1 ] || ! grep -q "$2" "$WORK/said"; then
    echo "planted $1: exit code $code, expected 1 and \"$2\""
    return 1
  fi
}

# A part has its own process group, so that its end is the end of everything that it started.
run_part() {
  local part=$1 began=$SECONDS code=0
  export WORK=$OUT/$part.files
  mkdir -p -m 755 "$WORK"
  echo "running" >"$OUT/$part.result"
  echo "=== $part"
  setsid timeout -k 10 "$LIMIT_S" tools/gpu_first_hour.sh --inside "$part" </dev/null >"$OUT/$part.log" 2>&1 || code=$?
  case $code in
    0) echo "OK in $((SECONDS - began)) s" ;;
    124 | 137) echo "CUT OFF after $((SECONDS - began)) s" ;;
    *) echo "FAILED with exit code $code in $((SECONDS - began)) s" ;;
  esac >"$OUT/$part.result"
  sync "$OUT/$part.result"
  echo "$(cat "$OUT/$part.result"); the last lines of $OUT/$part.log:"
  tail -n 12 "$OUT/$part.log" | cut -c 1-400
}

pack() {
  {
    echo "The first hour on a GPU, ${SMALL:+SMALL sizes, }$(date -u +%FT%TZ)"
    "$PYTHON" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, "HIP", torch.version.hip)' 2>&1
    nvidia-smi -L 2>&1 | head -n 20
    printf '\nOf the code of the ranks, no double reaches (%s):\n' "$UNREACHED"
    cut -c 1-160 "$UNREACHED"
    echo
    for part in $PARTS; do printf '%-10s %s\n' "$part" "$(cat "$OUT/$part.result" 2>/dev/null || echo 'not run')"; done
    for part in $PARTS; do
      [ -e "$OUT/$part.log" ] && printf '\n=== %s\n' "$part" && grep -aE '^(RESULT|FINAL|- |Error|trained|digest|FAILED|E  )|images/s|planted|busbw' \
        "$OUT/$part.log" | cut -c 1-300 | head -n 40
    done
  } >"$OUT/summary.txt"
  # The summary and logs first; files of runs only as far as they fit. tar's own limit would cut the archive.
  (
    cd "$OUT" || exit 1
    find . -maxdepth 1 \( -name '*.txt' -o -name '*.result' -o -name '*.json' \) -print
    find . -maxdepth 1 -name '*.log' -size -2048k -print
    find . -path './*.files/*' -type f -size -512k \( -name '*.json' -o -name '*.log' -o -name '*.events' -o -name '*.toml' \) -print |
      head -n 300
  ) | sed 's,^\./,,' >"$OUT/packed"
  local archive=$OUT/gpu-first-hour.tar.gz
  while tar -C "$OUT" -czf "$archive" -T "$OUT/packed" && [ "$(stat -c %s "$archive")" -ge 16000000 ]; do
    head -n -20 "$OUT/packed" >"$OUT/packed.less" && mv "$OUT/packed.less" "$OUT/packed"
  done
  cat "$OUT/summary.txt"
  echo "all of it: $archive ($(stat -c %s "$archive") bytes)"
}

if [ "${1:-}" = --inside ]; then
  "$2"
  exit
fi
case ${1:-} in
  list)
    for part in $PARTS; do echo "$0 $part"; done
    echo "$0 pack"
    exit
    ;;
  pack)
    pack
    exit
    ;;
esac
for part in "$@"; do
  [[ " $PARTS " == *" $part "* ]] || { echo "$0: no part $part; there are $PARTS, list and pack" >&2; exit 2; }
done
PYTHONPATH=$OURS "$PYTHON" -c 'import pathlib, sys; from seatrial.bundle import write_bundle; write_bundle(pathlib.Path(sys.argv[1]))' \
  "$PYZ" || exit 3
[ $# -gt 0 ] || cut -c 1-160 "$UNREACHED"
failed=0
read -ra parts <<<"${*:-$PARTS}"
for part in "${parts[@]}"; do
  run_part "$part"
  [[ $(cat "$OUT/$part.result") == OK* ]] || failed=1
done
[ $# -gt 0 ] || pack
exit "$failed"
