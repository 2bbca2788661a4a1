#!/bin/sh
# Pages that list what the code has: each list is complete, and has nothing else.
cd "$(dirname "$0")/../.." || exit 1
n_bad=0
report() {
    if [ "$1" -eq 0 ]; then echo "ok - $2"; else echo "not ok - $2"; n_bad=$((n_bad + 1)); fi
}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

same() { # FILE FILE
    diff "$1" "$2" >"$dir/diff" && return 0
    sed 's/^/# /' "$dir/diff"
    return 1
}

sed -n 's/^ *\[FIRN_REASON_[A-Z_]*\] = "\([a-z_]*\)",$/\1/p' src/base/status.c | sort >"$dir/reasons"
sed -n 's/^| `\([a-z_]*\)` | .*$/\1/p' docs/REASONS.md | sort >"$dir/page"
[ -s "$dir/reasons" ] && same "$dir/reasons" "$dir/page"
report $? "docs/REASONS.md explains each reason and no other"
[ "$(grep -c '^    \[FIRN_REASON_[A-Z_]*\] = { ' src/cmd/reason_advice.c)" -eq "$(wc -l <"$dir/reasons")" ]
report $? "firn cache explain has a text for each reason"

sed -n 's/^    { \.path = "\([^"]*\)".*/\1/p' src/server/route.c | sort >"$dir/routes"
sed -n 's/^## `[A-Z]* \([^`]*\)`.*/\1/p' docs/HTTP_API.md | sed 's/{.*}//' | sort >"$dir/page"
[ -s "$dir/routes" ] && same "$dir/routes" "$dir/page"
report $? "docs/HTTP_API.md describes each endpoint and no other"
bad=0
for field in $(sed -n 's/.*firni_field[a-z_]*(body, "\([a-z_]*\)".*/\1/p' src/server/*.c | sort -u); do
    grep -q "\`$field\`" docs/HTTP_API.md || { echo "# not described: $field"; bad=1; }
done
report $bad "docs/HTTP_API.md describes each field of a request"
[ $n_bad -eq 0 ]
