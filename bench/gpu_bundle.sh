#!/usr/bin/env bash
# Pack what bench/gpu.sh needs from a build into a folder that runs on a machine with nothing but a driver and Python:
# programs without symbols, their libraries, the golden file, and the commit they come from.
#
# usage: bench/gpu_bundle.sh BUILD BUNDLE
#   BUILD: a build tree with CUDA, as CMake makes it. BUNDLE: a folder that does not exist yet.
set -euo pipefail
[ $# = 2 ] || { sed -n '5,6s/^# //p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd) build=$(realpath "$1") bundle=$2
programs=(test_recency test_selections test_lifecycle test_shapes test_model test_fault hisparse)
libraries=(libcmocka.so.0 libjansson.so.4 libgomp.so.1)

for source in "$root"/tests/{,ops_}cuda/test_*.c; do programs+=("$(basename "$source" .c)"); done
for source in "$root"/bench/ops_gpu_*.cu; do programs+=("bench_$(basename "$source" .cu)"); done
[ -e "$build/lib/libhisparse_cuda.so" ] || { echo "$build has no CUDA part" >&2; exit 2; }
mkdir "$bundle" "$bundle/bin" "$bundle/lib" "$bundle/share"
for program in "${programs[@]}"; do strip -o "$bundle/bin/$program" "$build/bin/$program"; done

# Under the names by which they are opened: a bundle has no links.
soname() { readelf -d "$1" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'; }
for library in "$build"/lib/libhisparse*.so; do
  strip --strip-unneeded -o "$bundle/lib/$(soname "$library")" "$(realpath "$library")"
done
where() { ldd "$build/bin/$1" | awk -v name="$2" '$1 == name { print $3 }'; }
for library in "${libraries[@]}"; do cp "$(realpath "$(where test_recency "$library")")" "$bundle/lib/$library"; done

# OpenBLAS is 36 MB, and no command that runs on the GPU machine multiplies matrices on the CPU. What stands in for it has
# the three functions the engine names and ends the program should one be called.
cat >"$bundle/stub.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
static void refuse(const char *name) {
    fprintf(stderr, "%s: this bundle has no OpenBLAS (bench/gpu_bundle.sh)\n", name);
    abort();
}
void cblas_sgemm(void) { refuse("cblas_sgemm"); }
void cblas_sgemv(void) { refuse("cblas_sgemv"); }
void openblas_set_num_threads(void) { refuse("openblas_set_num_threads"); }
END
"${CC:-cc}" -shared -fPIC -s -Wl,-soname,libopenblas.so.0 -o "$bundle/lib/libopenblas.so.0" "$bundle/stub.c"
rm "$bundle/stub.c"

cp "$root/tests/golden/recency.json" "$bundle/share"
changed=$(git -C "$root" --no-optional-locks status --porcelain --untracked-files=no)
echo "$(git -C "$root" rev-parse --short HEAD)${changed:+-changed}" >"$bundle/commit"

# A program that finds no library here would find none there.
for program in "$bundle"/bin/*; do
  if LD_BIND_NOW=1 LD_LIBRARY_PATH=$bundle/lib ldd -r "$program" 2>&1 | grep -E 'not found|undefined'; then exit 1; fi
done
du -sh "$bundle"
