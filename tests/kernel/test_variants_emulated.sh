#!/bin/sh
# Variants that this machine cannot run give the bits of the scalar reference:
#   - AVX-512 and NEON compiled over the portable intrinsics of SIMDe (Debian: libsimde-dev);
#   - NEON built with a cross compiler and run under QEMU (gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user).
# Each is skipped where its tools are missing. What the machine itself can run is covered by test_variants.
set -u
cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
flags='-std=c17 -D_POSIX_C_SOURCE=200809L -O1 -fno-strict-aliasing -ffp-contract=off -pthread'
flags="$flags -Iinclude -Isrc -Itests/kernel"
# What the checks need besides the kernels.
others="src/base/alloc.c src/base/clock.c src/base/log.c src/base/status.c src/base/processors.c src/base/workers.c $(echo src/array/*.c)"

scalar='src/kernel/kernel_scalar.c src/kernel/grouped_scalar.c src/kernel/attend_scalar.c src/kernel/kernel_quant_scalar.c
    src/kernel/kernel_latent_scalar.c src/kernel/lloyd_tables.c src/kernel/weight.c src/kernel/weight_block.c src/kernel/matmul.c'

report() { # status name
    if [ "$1" -eq 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        failed=1
    fi
}

# GCC notes the calling convention of wide vectors; they stay within one file.
quiet=-Wno-psabi
for isa in avx512 neon; do
    case $isa in avx512) header=simde/x86/avx512.h ;; *) header=simde/arm/neon.h ;; esac
    name="$isa gives the bits of the scalar reference (emulated by SIMDe)"
    if ! echo "#include <$header>" | ${CC:-cc} -E -x c - >/dev/null 2>&1; then
        echo "ok - $name # SKIP no $header"
        continue
    fi
    ${CC:-cc} $flags $quiet -o "$dir/$isa" tests/kernel/emulated_$isa.c $scalar $others -lm && "$dir/$isa"
    report $? "$name"
done

name='neon gives the bits of the scalar reference (aarch64 under qemu)'
cross=aarch64-linux-gnu-gcc
if command -v $cross >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1; then
    kernels=$(ls src/kernel/*.c | grep -v -e '_avx2\.c$' -e '_avx512\.c$')
    $cross $flags -Wall -Wextra -Wpedantic -Wconversion -Wshadow -static -o "$dir/aarch64" \
        tests/kernel/variant_program.c $kernels $others -lm && qemu-aarch64 "$dir/aarch64"
    report $? "$name"
else
    echo "ok - $name # SKIP no $cross or no qemu-aarch64"
fi
exit $failed
