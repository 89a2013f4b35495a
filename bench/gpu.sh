#!/usr/bin/env bash
# Everything that needs a GPU, in one call: build without CMake (a machine that is lent may have only compilers and CUDA),
# run the conformance and model tests, then the bench. Results go to OUT.
#
# usage: bench/gpu.sh DEPS OUT
#   DEPS: a folder with include/ (cmocka.h, jansson.h, jansson_config.h) and lib/ (libcmocka.so.0, libjansson.so.4)
set -u
cd "$(dirname "$0")/.." || exit 2
deps=$(realpath "$1") out=$2 b=$(mktemp -d)
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
version=$(cat VERSION) soversion=${version%%.*}
c_flags=(-std=gnu11 -O2 -g -fPIC -fopenmp -D_GNU_SOURCE "-DHSP_VERSION_TEXT=\"$version\"" "-DHSP_SOVERSION_TEXT=\"$soversion\"" -Iinclude -Isrc
         -Itests "-I$deps/include" "-I$cuda/include" -DGOLDEN=\"tests/golden/recency.json\")
cuda_flags=(-std=c++17 -O3 -Isrc -Iinclude -gencode "arch=compute_90a,code=sm_90a" -Xptxas -v)
tests=(conformance/test_recency conformance/test_selections conformance/test_lifecycle conformance/test_shapes model/test_model)

wait_for_place() { while [ "$(jobs -r | wc -l)" -ge "$(nproc)" ]; do wait -n; done; }

mkdir "$b/lib" "$b/cuda" "$b/test"
for f in src/*.c src/core/*.c src/backend/*.c src/backend/ref/*.c src/backend/cpu/*.c src/backend/cuda/loader.c; do
  wait_for_place; gcc "${c_flags[@]}" -c "$f" -o "$b/lib/$(echo "$f" | tr / _).o" &
done
for f in backend memory geometry; do
  wait_for_place; gcc "${c_flags[@]}" -fvisibility=hidden -c "src/backend/cuda/$f.c" -o "$b/cuda/$f.o" &
done
for f in launch swap_in swap_in_big write request; do
  wait_for_place; nvcc "${cuda_flags[@]}" -Xcompiler -fPIC,-fvisibility=hidden -c "src/backend/cuda/$f.cu" -o "$b/cuda/$f.o" 2>"$b/$f.ptxas" &
done
for f in toy random_ops toy_cmocka toy_cuda; do wait_for_place; gcc "${c_flags[@]}" -c "tests/$f.c" -o "$b/test/$f.o" & done
wait
gcc -shared -o "$b/libhisparse.so" "$b"/lib/*.o -fopenmp -ldl -lpthread
# What the seam needs of the library's own objects is linked in, as the CMake build does.
nvcc -shared -cudart static -o "$b/libhisparse_cuda.so.$soversion" "$b"/cuda/*.o "$b"/lib/src_status.c.o "$b"/lib/src_alloc.c.o "$b"/lib/src_core_*.o || exit 1
for t in "${tests[@]}"; do
  wait_for_place
  gcc "${c_flags[@]}" "tests/$t.c" "$b"/test/*.o "$b"/lib/*.o -o "$b/$(basename "$t")" "$deps/lib/libcmocka.so.0" "$deps/lib/libjansson.so.4" \
    "-Wl,-rpath,$deps/lib" "-L$cuda/lib64" -lcudart_static -ldl -lrt -lpthread -lstdc++ &
done
nvcc -std=c++17 -O2 -Iinclude -gencode arch=compute_90a,code=sm_90a bench/swap_in_cuda.cu -o "$b/swap_in_cuda" "-L$b" -lhisparse -Xcompiler -pthread \
  -Xlinker "-rpath=$b" &
wait
grep -hE "spill stores|Used" "$b"/*.ptxas | sort | uniq -c >"$out/registers.txt"
nvidia-smi -L || exit 3
for t in "${tests[@]}"; do
  timeout 150 "$b/$(basename "$t")" >"$out/$(basename "$t").txt" 2>&1
  echo "$t: exit $?, $(grep -c ' OK ' "$out/$(basename "$t").txt") passed"
done
timeout 400 "$b/swap_in_cuda" "$out/swap_in.json"
