#!/bin/sh
# The house rules as tests: includes run one way, headers stand alone in C and C++, scripts are POSIX.
cd "$(dirname "$0")/../.." || exit 1
n_bad=0
report() {
    if [ "$1" -eq 0 ]; then echo "ok - $2"; else echo "not ok - $2"; n_bad=$((n_bad + 1)); fi
}

sh tools/check_includes.sh
report $? "includes run one way and base names are unique"

bad=0
for header in include/firn/*.h; do
    ${CC:-cc} -std=c17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -x c "$header" || bad=1
done
report $bad "each public header compiles alone as C17"

if command -v c++ >/dev/null 2>&1; then
    bad=0
    for header in include/firn/*.h; do
        c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -x c++ "$header" || bad=1
    done
    report $bad "each public header compiles alone as C++17"
else
    echo "ok - each public header compiles alone as C++17 # SKIP no C++ compiler"
fi

bad=0
for script in run check .ci/run tools/*.sh tests/*.sh bench/*.sh fuzz/*.sh; do
    sh -n "$script" || bad=1
done
report $bad "shell scripts parse"

bad=0
for function in $(sed -n 's/^.*[ *]\(firn_[a-z0-9_]*\)(.*$/\1/p' include/firn/*.h | sort -u); do
    grep -rqE "[ *]$function\(" src --include='*.c' || { echo "declared, not defined: $function"; bad=1; }
done
report $bad "every public function is defined"

if grep -rnE '^.{121,}$' src include tests bench fuzz --include='*.[ch]'; then bad=1; else bad=0; fi
report $bad "no line has more than 120 columns"

if grep -rnE '\b(TODO|FIXME|XXX|HACK)\b' src include tests/*/*.c bench/*.c examples 2>/dev/null; then bad=1; else bad=0; fi
report $bad "nothing is left for later in the code"

out=$("${FIRN_OUT:-build}/examples/one_row" 2>&1)
[ "$out" = "attended to 1 token: 2" ]
report $? "the example of the README runs"
sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"${FIRN_OUT:-build}/readme-example.c"
grep -v '^/\* One row' examples/one_row.c | cmp -s - "${FIRN_OUT:-build}/readme-example.c"
report $? "the example of the README is the one that is built"
[ $n_bad -eq 0 ]
