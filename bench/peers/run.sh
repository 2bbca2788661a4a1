#!/bin/sh
# Compares with llama.cpp on the model of `make bench`, or on others: BENCH_MODELS="llama:q4_0 qwen35:q8_0:350M" is a
# list of ARCH:TYPE[:PARAMS] for `firn synth` (450M parameters when it says nothing); BENCH_MODEL one GGUF file. Installs
# node-llama-cpp (prebuilt, about 100 MB) into FIRN_OUT on first use; nothing of Firn depends on it. Arguments are passed
# on to compare.mjs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${FIRN_OUT:=$here/../../build}"
commit=$(git -C "$here" describe --always --dirty 2>/dev/null || echo unknown)
mkdir -p "$FIRN_OUT/peers"
cp "$here/package.json" "$here/peer.mjs" "$here/compare.mjs" "$here/grow.mjs" "$FIRN_OUT/peers/"
cd "$FIRN_OUT/peers"
[ -d node_modules/node-llama-cpp ] || npm install --ignore-scripts --no-audit --no-fund >npm.log 2>&1 || {
    cat npm.log >&2
    exit 1
}

compare() {
    model=$1
    shift
    node compare.mjs --firn "$FIRN_OUT/firn" --commit "$commit" -m "$model" \
        --tiny "$here/../../models/firn-tiny-q8_0.gguf" "$@"
}

if [ -n "${BENCH_MODEL:-}" ]; then
    compare "$BENCH_MODEL" "$@"
    exit
fi
for spec in ${BENCH_MODELS:-llama:q8_0:450M}; do
    arch=${spec%%:*}
    rest=${spec#*:}
    type=${rest%%:*}
    params=450M
    [ "$rest" = "$type" ] || params=${rest#*:}
    # The name that `make bench` gives its own.
    name=$arch-$params-$type
    [ "$arch" != llama ] || name=$(echo "$params" | tr 'GM' 'gm')-$type
    model=$FIRN_OUT/bench-$name.gguf
    if [ ! -f "$model" ]; then
        "$FIRN_OUT/firn" synth --arch "$arch" --params "$params" --type "$type" --ctx 32768 -o "$model.partial" >&2
        mv "$model.partial" "$model"
    fi
    echo "$model" >&2
    compare "$model" "$@"
done
