#!/bin/sh
# The folder tree is the architecture: a folder may include what stands above it in this list, never what stands below.
# Prints each offence; exit status 1 when there is one.
set -u
cd "$(dirname "$0")/.."
order='base array kernel layout record tier prefix model engine server cmd'
rank() {
    i=0
    for name in $order; do
        i=$((i + 1))
        [ "$name" = "$1" ] && echo $i && return
    done
    echo 0
}
bad=0
for file in $(find src -name '*.[ch]'); do
    folder=$(echo "$file" | cut -d/ -f2)
    own=$(rank "$folder")
    if [ "$own" -eq 0 ]; then
        echo "$file: folder src/$folder is not in the architecture" && bad=1
        continue
    fi
    for include in $(sed -n 's/^#include "\([^"]*\)".*/\1/p' "$file"); do
        top=${include%%/*}
        if [ "$include" = "$top" ]; then
            echo "$file: \"$include\" must be written with its folder" && bad=1
        elif [ "$top" != firn ]; then
            other=$(rank "$top")
            if [ "$other" -eq 0 ] || [ "$other" -gt "$own" ]; then
                echo "$file: src/$folder may not include \"$include\"" && bad=1
            fi
        fi
    done
    case $(grep -hE '^#include "firn/(model|tokenizer|engine|sampling)\.h"' "$file") in
    ?*) [ "$own" -ge "$(rank model)" ] || { echo "$file: libfirn may not include a libfirnlm header" && bad=1; } ;;
    esac
done
for name in $(find src -name '*.[ch]' -exec basename {} \; | sort | uniq -d); do
    echo "src: more than one file is called $name" && bad=1
done
exit $bad
