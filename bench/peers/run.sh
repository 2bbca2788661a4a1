#!/bin/sh
# Compares with llama.cpp on the model of `make bench`. Installs node-llama-cpp (prebuilt, about 100 MB) into FIRN_OUT on
# first use; nothing of Firn depends on it. Arguments are passed on to compare.mjs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${FIRN_OUT:=$here/../../build}"
mkdir -p "$FIRN_OUT/peers"
cp "$here/package.json" "$here/peer.mjs" "$here/compare.mjs" "$FIRN_OUT/peers/"
cd "$FIRN_OUT/peers"
[ -d node_modules/node-llama-cpp ] || npm install --ignore-scripts --no-audit --no-fund >npm.log 2>&1 || {
    cat npm.log >&2
    exit 1
}
model=${BENCH_MODEL:-$FIRN_OUT/bench-450m-q8_0.gguf}
if [ ! -f "$model" ]; then
    "$FIRN_OUT/firn" synth --arch llama --params 450M --type q8_0 --ctx 32768 -o "$model.partial"
    mv "$model.partial" "$model"
fi
exec node compare.mjs --firn "$FIRN_OUT/firn" -m "$model" --tiny "$here/../../models/firn-tiny-q8_0.gguf" "$@"
