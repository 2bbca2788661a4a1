#!/bin/sh
# The kernel benchmark runs, checks its own results against the scalar reference, and prints well-formed JSON.
set -u
cd "$(dirname "$0")/../.." || exit 1
bench=${FIRN_OUT:-build}/bench/bench_kernel
if [ ! -x "$bench" ]; then
    echo "ok - bench_kernel runs tiny # SKIP not built"
    exit 0
fi
failed=0
if "$bench" --tiny | grep -q '^attend bf16'; then
    echo "ok - bench_kernel runs tiny"
else
    echo "not ok - bench_kernel runs tiny"
    failed=1
fi
json=$("$bench" --tiny --json --threads 1)
case $json in
'{"machine":'*'"case": "streaming read"'*'"case": "attend bf16'*']}')
    echo "ok - bench_kernel prints JSON"
    ;;
*)
    echo "not ok - bench_kernel prints JSON"
    failed=1
    ;;
esac
if "$bench" --kernel none >/dev/null 2>&1; then
    echo "not ok - bench_kernel refuses an unknown kernel"
    failed=1
else
    echo "ok - bench_kernel refuses an unknown kernel"
fi
exit $failed
