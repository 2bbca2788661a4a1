#!/bin/sh
# Models with windows, shared layers and sinks over restarts: what the disk gives back continues to the same answer, whole,
# and longer than before; and what is reused is nearly all of the prompt.
firn=${FIRN_OUT:-build}/firn
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fails=0

check() { # name, status of the check
    if [ "$2" -eq 0 ]; then echo "ok - $1"; else echo "not ok - $1" && fails=1; fi
}
# answer MODEL PROMPT FLAGS...: the answer to stdout, how much of the prompt was cached to $dir/cached
answer() {
    file=$1 text=$2
    shift 2
    "$firn" run -m "$file" -t 2 --restore-always --temp 0 -n 12 --ignore-end "$@" "$text" 2>"$dir/stderr" ||
        echo "# $(cat "$dir/stderr")" >&2
    sed -n 's/.* prompt tokens, \([0-9]*\) cached.*/\1/p' "$dir/stderr" >"$dir/cached"
}

prompt=$(i=0; while [ $i -lt 30 ]; do printf 'the quick brown fox jumps over the lazy dog. '; i=$((i + 1)); done)
for arch in gemma3 gemma4 gpt-oss; do
    model=$dir/$arch.gguf
    "$firn" synth --arch $arch --params 2M --type q8_0 --layers 6 --ctx 8192 -o "$model" >/dev/null || fails=1
    answer "$model" "$prompt" --no-disk >"$dir/expected"
    answer "$model" "$prompt and then" --no-disk >"$dir/expected-longer"
    answer "$model" "$prompt" --cache-dir "$dir/$arch" >"$dir/first"
    cmp -s "$dir/first" "$dir/expected" && [ "$(cat "$dir/cached")" -eq 0 ]
    check "$arch: with a disk tier the answer is the same" $?
    answer "$model" "$prompt" --cache-dir "$dir/$arch" >"$dir/second"
    cmp -s "$dir/second" "$dir/expected" && [ "$(cat "$dir/cached")" -ge 1300 ]
    check "$arch: a restored prompt is answered alike" $?
    answer "$model" "$prompt and then" --cache-dir "$dir/$arch" >"$dir/third"
    cmp -s "$dir/third" "$dir/expected-longer" && [ "$(cat "$dir/cached")" -ge 1300 ]
    check "$arch: a longer prompt continues what was restored" $?
done
exit $fails
