#!/bin/sh
# The command `firn tokenize`: its forms of input and output, its exit statuses.
set -u
cd "$(dirname "$0")/../.."
firn=${FIRN_OUT:-$PWD/build}/firn
vocab=tests/oracle/vocab512.gguf
failed=0

check() { # NAME WANTED GOT
    if [ "$2" = "$3" ]; then
        echo "ok - $1"
    else
        echo "not ok - $1"
        printf '%s\n' "wanted: $2" "got:    $3" | sed 's/^/# /'
        failed=1
    fi
}

text='the cold tier keeps'
ids='422 368 314 400'
check "ids of a text given as a flag" "$ids" "$("$firn" tokenize -m $vocab --ids --text "$text")"
check "ids with BOS in front" "508 $ids" "$("$firn" tokenize -m $vocab --ids --bos --text "$text")"
check "ids of standard input" "$ids" "$(printf %s "$text" | "$firn" tokenize -m $vocab --ids -)"
check "text of ids" "$text" "$(echo "[422, 368,314 400]" | "$firn" tokenize -m $vocab --decode -)"
check "a token a line, with what cannot be printed escaped" '      97  "a"
      10  "\x0A"
     195  "\xC3"' "$(printf 'a\n\303' | "$firn" tokenize -m $vocab -)"
check "special tokens stay text" "60 124 98 111 115 124 62" "$("$firn" tokenize -m $vocab --ids --text '<|bos|>')"
check "special tokens on request" 508 "$("$firn" tokenize -m $vocab --ids --special --text '<|bos|>')"
check "without -m the model is the built-in one, or \$FIRN_MODEL" "385 1989" \
    "$(FIRN_MODEL=models/firn-tiny-q8_0.gguf "$firn" tokenize --ids --text 'My')"

answers=$(printf '%s\n' '{"text":"the cold"}' '{"text":"<|eos|>","special":true,"bos":true}' '{"ids":[422,368]}' '{"ids":[195]}' \
    '{"text":"a\u0000b"}' '{"ids":[512]}' 'nonsense' '{}' | "$firn" tokenize -m $vocab --json-lines 2>&1)
status=$?
check "JSON lines: exit status 1 when a line was wrong" 1 $status
check "JSON lines: ids" '{"ids":[422,368]}' "$(echo "$answers" | sed -n 1p)"
check "JSON lines: a request's own flags" '{"ids":[508,509]}' "$(echo "$answers" | sed -n 2p)"
check "JSON lines: text" '{"text":"the cold"}' "$(echo "$answers" | sed -n 3p)"
check "JSON lines: bytes that are not UTF-8" '{"text":"�","hex":"c3"}' "$(echo "$answers" | sed -n 4p)"
check "JSON lines: NUL is a character" '{"ids":[97,0,98]}' "$(echo "$answers" | sed -n 5p)"
check "JSON lines: every wrong line is answered" 3 "$(echo "$answers" | grep -c '^{"error":')"
check "JSON lines: as many answers as requests" 8 "$(echo "$answers" | wc -l)"
printf '{"text":"the cold"}\n' | "$firn" tokenize -m $vocab --json-lines >/dev/null
check "JSON lines: exit status 0 when all were right" 0 $?

"$firn" tokenize -m $vocab >/dev/null 2>&1
check "no text is wrong usage" 2 $?
"$firn" tokenize -m $vocab --text a some-file >/dev/null 2>&1
check "two texts are wrong usage" 2 $?
"$firn" tokenize -m no-such-file.gguf --text a >/dev/null 2>&1
check "a missing model is a failure" 1 $?
"$firn" tokenize -m $vocab no-such-file >/dev/null 2>&1
check "a missing text is a failure" 1 $?
check "a failure names its cause" 1 "$("$firn" tokenize -m $vocab no-such-file 2>&1 | grep -c '^firn tokenize: no-such-file: ')"
exit $failed
