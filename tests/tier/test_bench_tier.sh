#!/bin/sh
# The benchmarks of the disk tier run, and check what they restore and what rows answer before they time it.
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=${FIRN_OUT:-build}/bench
failed=0

check() {
    if [ ! -x "$folder/$1" ]; then
        echo "ok - $1 runs tiny # SKIP not built"
    elif "$folder/$1" --tiny | grep -q "$2"; then
        echo "ok - $1 runs tiny"
    else
        echo "not ok - $1 runs tiny"
        failed=1
    fi
}

check bench_restore '^  packed (zstd) .* GB/s, of raw '
check bench_write_behind '^  ratio of each run '
check bench_throttled '^  [012] of 2 were restored'
exit $failed
