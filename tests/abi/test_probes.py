#!/usr/bin/env python3
"""Builds of the library with USDT probes and with NVTX ranges have them, and the ordinary one has neither; in TAP.
usage: test_probes.py BUILD_DIR"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CALLS = ("step_begin", "append", "swap_in", "wait_rows")
PROBES = sorted(call + end for call in CALLS for end in ("_begin", "_end"))


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    return done.returncode, done.stdout


def build(option):
    """Path of a library built with an option, None where its header is missing."""
    folder = tempfile.mkdtemp(dir=os.path.abspath(sys.argv[1]))
    code, text = output("cmake", "-S", ROOT, "-B", folder, "-DHISPARSE_CUDA=OFF", "-DHISPARSE_TOOLS=OFF", "-DHISPARSE_TESTS=OFF",
                        "-DCMAKE_BUILD_TYPE=Debug", "-D%s=ON" % option)
    try:
        if code and "Could not find " + option + "_INCLUDE" in text:
            return None
        if code == 0:
            code, text = output("cmake", "--build", folder, "--target", "hisparse")
        assert code == 0, text
        kept = os.path.join(sys.argv[1], option + ".so")
        shutil.copy(os.path.join(folder, "lib", "libhisparse.so"), kept)
        return kept
    finally:
        shutil.rmtree(folder)


def probes(library):
    notes = output("readelf", "-n", library)[1]
    return sorted(set(re.findall(r"Provider: hisparse\n\s+Name: (\w+)", notes)))


def ranges(library):
    with open(library, "rb") as file:
        image = file.read()
    return sorted(c for c in CALLS if b"nvtx" in image and b"\0hsp_" + c.encode() + b"\0" in image)


def main():
    ordinary = os.path.join(sys.argv[1], "lib", "libhisparse.so")
    plain = probes(ordinary) == [] and b"nvtx" not in open(ordinary, "rb").read()
    print("%s 1 - an ordinary build has neither" % ("ok" if plain else "not ok"))
    bad = not plain
    for number, option, find, want in ((2, "HISPARSE_USDT", probes, PROBES), (3, "HISPARSE_NVTX", ranges, sorted(CALLS))):
        library = build(option)
        if not library:
            print("ok %d - %s # SKIP its header is not installed" % (number, option))
            continue
        found = find(library)
        bad |= found != want
        print("%s %d - %s: %s" % ("ok" if found == want else "not ok", number, option, " ".join(found)))
        os.remove(library)
    print("1..3")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
