#!/bin/sh
# What `make bench` runs: `firn bench` on a synthetic model of 450M parameters, then the programs of this folder.
# FIRN_OUT is the build folder, where the model is kept. BENCH_THREADS (2), BENCH_TTFT (8000 tokens), BENCH_RUNS (5),
# BENCH_MODEL (another GGUF file), BENCH_DEEP (8192,32768 tokens of context), BENCH_KV (f16 q8 q4 turbo).
set -eu
cd "$(dirname "$0")/.."
: "${FIRN_OUT:=$PWD/build}"
export FIRN_OUT
threads=${BENCH_THREADS:-2}

echo "machine   $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), $(nproc) processors," \
    "$(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null)"
echo "system    $(uname -srm)"
echo "compiler  $(${CC:-cc} --version | head -n 1)"
echo "commit    $(git describe --always --dirty 2>/dev/null || echo 'not a git checkout')"
echo "load      $(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null) before the first run"
echo

model=${BENCH_MODEL:-$FIRN_OUT/bench-450m-q8_0.gguf}
if [ ! -f "$model" ]; then
    "$FIRN_OUT/firn" synth --arch llama --params 450M --type q8_0 --ctx 32768 -o "$model.partial"
    mv "$model.partial" "$model"
    echo
fi

"$FIRN_OUT/firn" bench -m "$model" --threads "$threads" --prompt 512 --gen 64 --batch 1,4 \
    --runs "${BENCH_RUNS:-5}" --ttft "${BENCH_TTFT:-8000}" --cache-dir "$FIRN_OUT"

# Each scheme for keys and values at the end of long contexts.
for kv in ${BENCH_KV:-f16 q8 q4 turbo}; do
    echo
    "$FIRN_OUT/firn" bench -m "$model" --threads "$threads" --prompt 0 --gen 64 --runs "${BENCH_RUNS:-5}" \
        --deep "${BENCH_DEEP:-8192,32768}" --kv "$kv"
done

for program in "$FIRN_OUT"/bench/bench_*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    # A program whose source was deleted since is left out.
    [ -e "bench/${program##*/}.c" ] || continue
    echo
    echo "${program##*/}"
    case ${program##*/} in
    bench_throttled | bench_write_behind) "$program" -m "$model" --threads "$threads" ;;
    *) "$program" ;;
    esac
done
