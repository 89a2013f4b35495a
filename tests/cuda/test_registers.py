#!/usr/bin/env python3
"""Every kernel of the libraries, compiled for the GPU it is tuned for: no spills, and its largest block fits the registers.

usage: test_registers.py BUILD_DIR     skipped where the build has no CUDA compiler
"""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REGISTERS = 65536  # of a multiprocessor
THREADS = {"swap_in": 1024, "swap_in_big": 1024, "follow": 1024, "top": 512}  # of the largest block, as the sources say; the others launch 256 or fewer
KERNEL = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)


def compiler(build):
    with open(os.path.join(build, "CMakeCache.txt")) as file:
        found = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", file.read(), re.M)
    return found.group(1) if found and "NOTFOUND" not in found.group(1) else None


def kernels(nvcc, source):
    """Name, bytes spilled and registers of each kernel of a source."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([nvcc, "-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-I", os.path.join(ROOT, "src"),
                               "-I", os.path.join(ROOT, "include"), "-I", os.path.join(ROOT, "ops"), "-c", source, "-o", os.path.join(folder, "kernel.o")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        return [(done.stdout.strip()[-300:], 1, 0)]
    return [(name, int(stores) + int(loads), int(used)) for name, stores, loads, used in KERNEL.findall(done.stdout)]


def main():
    nvcc = compiler(sys.argv[1])
    sources = sorted(glob.glob(os.path.join(ROOT, "src", "backend", "cuda", "*.cu")) + glob.glob(os.path.join(ROOT, "ops", "cuda", "*.cu")))
    if not nvcc:
        print("ok 1 - kernels fit # SKIP no CUDA compiler\n1..1")
        return
    number = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for source, found in zip(sources, pool.map(lambda s: kernels(nvcc, s), sources)):
            stem = os.path.splitext(os.path.basename(source))[0]
            for name, spilled, registers in found:
                fits = spilled == 0 and (registers + 7) // 8 * 8 * THREADS.get(stem, 256) <= REGISTERS
                number += 1
                print("%s %d - %s: %d registers, %d bytes spilled" % ("ok" if fits else "not ok", number, name, registers, spilled))
    print("1..%d" % number if number else "not ok 1 - no kernel was found\n1..1")


if __name__ == "__main__":
    main()
