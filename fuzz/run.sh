#!/bin/sh
# Builds each fuzz/fuzz_*.c with libFuzzer and the address sanitizer, and runs it for FUZZ_SECONDS.
# Inputs that found something new are kept in build/fuzz/corpus; what crashes is written to build/fuzz and fails the run.
#   FUZZ_SECONDS=600 ONLY=record sh fuzz/run.sh
set -u
cd "$(dirname "$0")/.."
: "${FUZZ_SECONDS:=60}" "${FUZZ_OUT:=$PWD/build/fuzz}" "${FUZZ_CC:=clang}"
if ! command -v "$FUZZ_CC" >/dev/null 2>&1; then
    echo "fuzzing needs clang; install it, or name it in FUZZ_CC" >&2
    exit 1
fi
mkdir -p "$FUZZ_OUT"

# The library once, instrumented; the fuzzers are linked to it.
make -s OUT="$FUZZ_OUT" CC="$FUZZ_CC" CFLAGS='-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer -Wno-error' \
    "$FUZZ_OUT/libfirnlm.a" "$FUZZ_OUT/libfirn.a" || exit 1

failed=0
for source in fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    case $name in *"${ONLY:-}"*) ;; *) continue ;; esac
    mkdir -p "$FUZZ_OUT/corpus/$name"
    seeds=
    [ -d "fuzz/seeds/$name" ] && seeds=fuzz/seeds/$name
    "$FUZZ_CC" -std=c17 -D_POSIX_C_SOURCE=200809L -O1 -g -fsanitize=fuzzer,address -fno-omit-frame-pointer -pthread \
        -Iinclude -Isrc -Itests "$source" "$FUZZ_OUT/libfirnlm.a" "$FUZZ_OUT/libfirn.a" -o "$FUZZ_OUT/$name" \
        -ljansson -lpcre2-8 -luring -llmdb -lxxhash -lzstd -lcrypto -lm || exit 1
    # shellcheck disable=SC2086
    if "$FUZZ_OUT/$name" -max_total_time="$FUZZ_SECONDS" -max_len=16384 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$FUZZ_OUT/" "$FUZZ_OUT/corpus/$name" $seeds >"$FUZZ_OUT/$name.log" 2>&1; then
        echo "ok - $name: $(sed -n 's/.*number_of_executed_units: *//p' "$FUZZ_OUT/$name.log") inputs"
    else
        echo "not ok - $name: see $FUZZ_OUT/$name.log"
        tail -n 30 "$FUZZ_OUT/$name.log" >&2
        failed=1
    fi
done
exit $failed
