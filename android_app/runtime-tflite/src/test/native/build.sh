#!/bin/sh
# build.sh OUT LIBRARY: OUT then holds an unmodified Android library (x86_64; with ARCH=aarch64 arm64) and what it needs from Android on this
# machine: libc.so (bionic_shim.c, C library functions passed on to glibc) and empty libm.so, libdl.so and liblog.so.
# Does nothing when OUT is newer than both sources.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
so=$2
done=$out/$(basename "$so")
if [ "$done" -nt "$so" ] && [ "$done" -nt "$here/bionic_shim.c" ]; then exit 0; fi
case ${ARCH:-x86_64} in
aarch64)
    cross=aarch64-linux-gnu-
    glibc=/usr/aarch64-linux-gnu/lib/libc.so.6
    ;;
*)
    cross=
    glibc=$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p | awk '/libc.so.6 .*x86-64/{print $NF; exit}')
    ;;
esac
mkdir -p "$out"
cd "$out"

"${cross}nm" -D --defined-only "$glibc" "$(dirname "$glibc")/libm.so.6" | awk '$2 ~ /[TWiu]/{sub(/@.*/, "", $3); print $3}' | sort -u >glibc.names
: >names.h
"${cross}gcc" -E -fdirectives-only -I. "$here/bionic_shim.c" | sed -n 's/^O([^,]*, \([A-Za-z0-9_]*\),.*/\1/p' | sort -u >own.names
"${cross}nm" -D --undefined-only "$so" >undefined.txt
sed 's/.* //; s/@.*//' undefined.txt | sort -u >need.names
comm -12 need.names glibc.names | comm -23 - own.names | sed 's/.*/F(&)/' >names.h

# The versions that the library asks for: LIBC, and later nodes such as LIBC_O.
{
    echo 'LIBC { global: *; };'
    sed -n 's/.*@//p' undefined.txt | sort -u | grep -vx LIBC | while read -r version; do
        echo "$version { global:"
        sed -n "s/.* \(.*\)@$version\$/\1;/p" undefined.txt | sort -u
        echo '};'
    done
} >versions.map
"${cross}gcc" -O2 -fPIC -shared -fno-builtin -U_FORTIFY_SOURCE -w -I. -Wl,-Bsymbolic -Wl,-soname,libc.so \
    -Wl,--version-script=versions.map "$here/bionic_shim.c" -o libc.so
sed -n '/{/s/{.*/{ };/p' versions.map >empty.map
for name in libm libdl liblog; do
    echo 'int bionic_stub;' | "${cross}gcc" -shared -fPIC -x c - -Wl,-soname,$name.so -Wl,--version-script=empty.map -o $name.so
done
rm -f glibc.names own.names need.names names.h undefined.txt versions.map empty.map
# Last, so that an interrupted build is begun anew.
cp "$so" "$done"
touch "$done"
