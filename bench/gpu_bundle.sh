#!/usr/bin/env bash
# Pack what bench/gpu.sh needs from a build into a folder that runs on a machine with nothing but a driver and Python:
# programs without symbols, their libraries, the golden file, and the commit they come from.
#
# usage: bench/gpu_bundle.sh BUILD BUNDLE
#   BUILD: a build tree with CUDA, as CMake makes it. BUNDLE: a folder that does not exist yet.
set -euo pipefail
[ $# = 2 ] || { sed -n '5,6s/^# //p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd) build=$(realpath "$1") bundle=$2
programs=(test_recency test_selections test_lifecycle test_shapes test_followers test_model test_fault hisparse)
libraries=(libcmocka.so.0 libjansson.so.4 libgomp.so.1)

for source in "$root"/tests/{,ops_}cuda/test_*.c; do programs+=("$(basename "$source" .c)"); done
for source in "$root"/bench/ops_gpu_*.cu; do programs+=("bench_$(basename "$source" .cu)"); done
[ ! -e "$build/bin/test_cuda_engine" ] || programs+=(test_cuda_engine) # needs the cuBLAS of the GPU machine
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
zip=$(where hisparse libzip.so.4) # and what it packs and encrypts with
for library in "$zip" $(ldd "$zip" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m)\.so/ { print $3 }'); do
  cp "$(realpath "$library")" "$bundle/lib/$(basename "$library")"
done

# OpenBLAS is 36 MB, and on the GPU machine only tiny models are computed on the CPU, to compare with. What stands in for it
# has the three functions the engine names, for the layouts it names.
cat >"$bundle/stub.c" <<'END'
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    (void)order, (void)trans_a, (void)trans_b, (void)alpha, (void)beta; /* rows, a times b transposed, 1, 0 */
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[(long)i * lda + l] * b[(long)j * ldb + l];
            c[(long)i * ldc + j] = sum;
        }
}
void cblas_sgemv(int order, int trans, int m, int n, float alpha, const float *a, int lda, const float *x, int x_step,
                 float beta, float *y, int y_step) {
    enum { TRANS = 112 };
    int outputs = trans == TRANS ? n : m, inputs = trans == TRANS ? m : n;
    (void)order, (void)alpha, (void)beta, (void)x_step, (void)y_step; /* rows, 1, 0, 1, 1 */
    for (int i = 0; i < outputs; i++) {
        float sum = 0;
        for (int l = 0; l < inputs; l++)
            sum += (trans == TRANS ? a[(long)l * lda + i] : a[(long)i * lda + l]) * x[l];
        y[i] = sum;
    }
}
void openblas_set_num_threads(int n) { (void)n; }
END
"${CC:-cc}" -O2 -shared -fPIC -s -Wl,-soname,libopenblas.so.0 -o "$bundle/lib/libopenblas.so.0" "$bundle/stub.c"
rm "$bundle/stub.c"

cp "$root/tests/golden/recency.json" "$bundle/share"
changed=$(git -C "$root" --no-optional-locks status --porcelain --untracked-files=no)
echo "$(git -C "$root" rev-parse --short HEAD)${changed:+-changed}" >"$bundle/commit"

# A program that finds no library here would find none there.
for program in "$bundle"/bin/*; do
  if LD_BIND_NOW=1 LD_LIBRARY_PATH=$bundle/lib ldd -r "$program" 2>&1 | grep -E 'not found|undefined'; then exit 1; fi
done
du -sh "$bundle"
