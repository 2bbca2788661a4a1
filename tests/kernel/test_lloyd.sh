#!/bin/sh
# The tables of Lloyd-Max quantisers are what their program computes.
set -u
cd "$(dirname "$0")/../.." || exit 1
: "${FIRN_OUT:=$PWD/build}"
name='tools/lloyd_max makes src/kernel/lloyd_tables.c'
if "$FIRN_OUT/tools/lloyd_max" | cmp - src/kernel/lloyd_tables.c; then
    echo "ok - $name"
else
    echo "not ok - $name"
    exit 1
fi
