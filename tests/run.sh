#!/bin/sh
# Runs every test there is and ends with "N passed, N failed[, N skipped]". Exit status 1 when one failed.
#   tests/*/test_*.c     cmocka programs, built before
#   tests/*/test_*.sh    shell tests   } print "ok - name", "not ok - name" or "ok - name # SKIP why",
#   tests/*/test_*.mjs   node tests    } a line for each test
# FIRN_OUT is the build folder; ONLY=pattern runs those whose path contains it.
set -u
cd "$(dirname "$0")/.."
: "${FIRN_OUT:=$PWD/build}"
export FIRN_OUT
export TSAN_OPTIONS="${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}" # of `make SAN=thread check`
logs=$FIRN_OUT/test-logs

list=$( (find "$FIRN_OUT/tests" -type f -name 'test_*' ! -name '*.*' 2>/dev/null
    find tests -mindepth 2 -name node_modules -prune -o \( -name 'test_*.sh' -o -name 'test_*.mjs' \) -print) | sort)
if [ -n "${ONLY:-}" ]; then
    list=$(printf '%s\n' "$list" | grep -- "$ONLY")
fi

run_one() {
    test=$1
    # Named after folder and file; a program of a file that was deleted since is left out.
    case $test in
    "$FIRN_OUT"/tests/*)
        name=${test#"$FIRN_OUT"/tests/}
        [ -e "tests/$name.c" ] || exit 0
        set -- "$test"
        ;;
    *.sh) name=${test#tests/} && set -- sh "$test" ;;
    *.mjs) name=${test#tests/} && set -- node "$test" ;;
    esac
    log=$logs/$(printf '%s' "$name" | tr / _).log
    timeout -k 10 "${FIRN_TEST_TIMEOUT:-600}" "$@" >"$log" 2>&1 </dev/null
    status=$?
    passed=$(grep -cE '^\[       OK \]|^ok ' "$log")
    skipped=$(grep -cE '^\[  SKIPPED \] [A-Za-z_]|^ok .*# SKIP' "$log")
    failed=$(grep -cE '^\[  FAILED  \] [A-Za-z_]|^not ok ' "$log")
    # cmocka lists failed and skipped tests a second time in its summary.
    case $test in *.sh | *.mjs) passed=$((passed - skipped)) ;; *) failed=$(grep -E '^\[  FAILED  \] [A-Za-z_]' "$log" | sort -u | wc -l)
        skipped=$(grep -E '^\[  SKIPPED \] [A-Za-z_]' "$log" | sort -u | wc -l) ;; esac
    if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
        echo "test program ended with status $status" >>"$log"
    fi
    if [ $((passed + skipped + failed)) -eq 0 ]; then
        failed=1
        echo "test program ran no test" >>"$log"
    fi
    echo "$passed $failed $skipped" >"$log.count"
    if [ "$failed" -gt 0 ]; then
        { echo "FAIL $name ($failed failed)"; tail -n 60 "$log" | sed 's/^/    /'; } >&2
    else
        echo "pass $name ($passed)" >&2
    fi
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi
rm -rf "$logs"
mkdir -p "$logs"
printf '%s\n' "$list" | xargs -P "${FIRN_TEST_JOBS:-2}" -I{} sh tests/run.sh --one {}
cat "$logs"/*.count 2>/dev/null | awk '{ p += $1; f += $2; s += $3 }
    END { printf "%d passed, %d failed", p, f; if (s > 0) printf ", %d skipped", s; print ""; exit f > 0 || p == 0 }'
