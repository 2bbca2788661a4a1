#!/bin/sh
# The one list of system packages, and their installation when something is missing. Sourced by ./run and ./check.
# Each line of the list: a test that succeeds when it is there, then the Debian package.
set -eu

FIRN_PACKAGES='
have make|make
have cc|gcc
have pkg-config|pkg-config
header stdlib.h|libc6-dev
header lmdb.h|liblmdb-dev
header liburing.h|liburing-dev
header xxhash.h|libxxhash-dev
header zstd.h|libzstd-dev
header openssl/sha.h|libssl-dev
header microhttpd.h|libmicrohttpd-dev
header jansson.h|libjansson-dev
header pcre2.h|libpcre2-dev
'
FIRN_TEST_PACKAGES='
header cmocka.h|libcmocka-dev
header simde/simde-common.h|libsimde-dev
have curl|curl
have node|nodejs
have npm|npm
'

have() { command -v "$1" >/dev/null 2>&1; }
header() {
    for dir in /usr/include /usr/include/*-linux-gnu /usr/local/include; do
        [ -e "$dir/$1" ] && return 0
    done
    return 1
}

# install_packages LIST: installs those of the list whose test fails; silent when nothing is missing.
install_packages() {
    missing=
    while IFS='|' read -r probe package; do
        [ -n "$probe" ] || continue
        $probe || missing="$missing $package"
    done <<EOF
$1
EOF
    [ -n "$missing" ] || return 0
    if ! have apt-get; then
        echo "missing:$missing (Debian package names); install them with your package manager and run this again" >&2
        exit 1
    fi
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing:$missing" >&2
    $sudo apt-get update -q >&2
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >&2
}
