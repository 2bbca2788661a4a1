#!/bin/sh
# `firn synth` and `firn logits` from the command line: same flags, same bytes; clear refusals; nothing half-written.
firn=${FIRN_OUT:-build}/firn
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fails=0

check() { # name, status of the check
    if [ "$2" -eq 0 ]; then echo "ok - $1"; else echo "not ok - $1" && fails=1; fi
}
# refuses NAME STATUS WORDS COMMAND...: exit status and words on stderr, and no stray file
refuses() {
    name=$1 status=$2 words=$3
    shift 3
    "$firn" "$@" >/dev/null 2>"$dir/stderr"
    got=$?
    [ $got -eq "$status" ] && grep -q -- "$words" "$dir/stderr" && [ "$(find "$dir" -name '*.partial' | wc -l)" -eq 0 ]
    result=$?
    [ $result -eq 0 ] || echo "# exit $got: $(cat "$dir/stderr")"
    check "$name" $result
}

shape="--layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 16 --ffn 96 --vocab 300"
# shellcheck disable=SC2086
"$firn" synth --arch qwen3 --type q8_0 $shape --seed 5 -o "$dir/a.gguf" >/dev/null &&
    "$firn" synth --arch qwen3 --type q8_0 $shape --seed 5 -o "$dir/b.gguf" >/dev/null && cmp -s "$dir/a.gguf" "$dir/b.gguf"
check "synth writes the same bytes for the same flags" $?
# shellcheck disable=SC2086
"$firn" synth --arch qwen3 --type q8_0 $shape --seed 6 -o "$dir/b.gguf" >/dev/null && ! cmp -s "$dir/a.gguf" "$dir/b.gguf"
check "synth writes other bytes for another seed" $?

i=0
while [ $i -lt 150 ]; do
    printf '%s%d' "$([ $i -gt 0 ] && echo ', ')" $((i * 31 % 300))
    i=$((i + 1))
done >"$dir/tokens"
"$firn" logits -m "$dir/a.gguf" --tokens "$dir/tokens" --out "$dir/whole" --chunk 4096 &&
    [ "$(wc -c <"$dir/whole")" -eq $((150 * 300 * 4)) ]
check "logits writes one float for each position and token" $?
for flags in "--chunk 1" "--chunk 7 --threads 1" "--chunk 64 --threads 2" "--kernel scalar"; do
    # shellcheck disable=SC2086
    "$firn" logits -m "$dir/a.gguf" --tokens "$dir/tokens" --out "$dir/other" $flags && cmp -s "$dir/whole" "$dir/other"
    check "logits are the same bits with $flags" $?
done
"$firn" logits -m "$dir/a.gguf" --tokens "$dir/tokens" --out "$dir/other" --kv f16 && ! cmp -s "$dir/whole" "$dir/other"
check "logits differ with rounded state" $?

printf '1,2,x' >"$dir/letters"
printf '1,2,' >"$dir/trailing"
printf '1 2' >"$dir/spaces"
printf '1,300' >"$dir/outside"
printf '99999999999999999999' >"$dir/huge"
: >"$dir/empty"
out="--out $dir/none"
# shellcheck disable=SC2086
{
    refuses "a missing list is named" 1 "cannot open $dir/nothing" logits -m "$dir/a.gguf" --tokens "$dir/nothing" $out
    refuses "letters are refused" 1 "expected a token id at byte 4" logits -m "$dir/a.gguf" --tokens "$dir/letters" $out
    refuses "a trailing comma is refused" 1 "expected a token id" logits -m "$dir/a.gguf" --tokens "$dir/trailing" $out
    refuses "a missing comma is refused" 1 "expected a comma at byte 2" logits -m "$dir/a.gguf" --tokens "$dir/spaces" $out
    refuses "an empty list is refused" 1 "expected a token id" logits -m "$dir/a.gguf" --tokens "$dir/empty" $out
    refuses "a huge id is refused" 1 "too large" logits -m "$dir/a.gguf" --tokens "$dir/huge" $out
    refuses "an id outside the vocabulary is refused" 1 "id 300 at place 1" logits -m "$dir/a.gguf" --tokens "$dir/outside" $out
    refuses "a missing model is named" 1 "$dir/no.gguf" logits -m "$dir/no.gguf" --tokens "$dir/tokens" $out
    refuses "a file that is no model is refused" 1 "not a GGUF file" logits -m "$dir/tokens" --tokens "$dir/tokens" $out
    refuses "an output that cannot be made is named" 1 "cannot create" logits -m "$dir/a.gguf" --tokens "$dir/tokens" --out "$dir/no/x"
    refuses "--out is required" 2 "required" logits -m "$dir/a.gguf" --tokens "$dir/tokens"
    refuses "an unknown state type is wrong usage" 2 "kv" logits -m "$dir/a.gguf" --tokens "$dir/tokens" $out --kv q9
    refuses "a chunk of 0 is wrong usage" 2 "chunk" logits -m "$dir/a.gguf" --tokens "$dir/tokens" $out --chunk 0
    refuses "synth needs a file" 2 "-o FILE" synth
    refuses "synth names impossible shapes" 1 "heads must be a multiple" synth --heads 5 --kv-heads 2 -o "$dir/x.gguf"
    refuses "synth knows its architectures" 2 "llama" synth --arch mamba -o "$dir/x.gguf"
    refuses "synth names a place it cannot write" 1 "cannot create" synth --params 1M -o "$dir/no/x.gguf"
}
[ ! -e "$dir/none" ] && [ ! -e "$dir/x.gguf" ]
check "refused commands leave no output" $?
exit $fails
