#!/usr/bin/env python3
"""Exported symbols of the libraries against the frozen lists, in TAP. usage: test_abi.py BUILD_DIR"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def exported(library):
    text = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True,
                          stdout=subprocess.PIPE).stdout.decode()
    return sorted(line.split()[-1] for line in text.splitlines() if " T " in line or " D " in line)


def declared(header):
    with open(os.path.join(ROOT, "include", header)) as file:
        return sorted(re.findall(r"^HSP_API .*?\b(hsp_\w+)\(", file.read(), re.M))


def main():
    build, number, bad = sys.argv[1], 0, 0
    for name, header in (("hisparse", "hisparse.h"), ("hisparse_ops", "hisparse_ops.h"),
                         ("hisparse_ops_cuda", "hisparse_ops_gpu.h")):
        library = os.path.join(build, "lib", "lib%s.so" % name)
        if name == "hisparse_ops_cuda" and not os.path.exists(library):
            continue  # a build without CUDA
        symbols = exported(library)
        with open(os.path.join(HERE, name + ".symbols")) as file:
            frozen = file.read().split()
        checks = {
            "%s exports what %s.symbols lists" % (name, name): symbols == frozen,
            "%s declares what the library exports" % header: declared(header)
            == sorted({s.split("@")[0] for s in symbols}),
        }
        for what, good in checks.items():
            number += 1
            bad += not good
            print("%s %d - %s" % ("ok" if good else "not ok", number, what))
        if symbols != frozen:
            print("# only in the library: %s" % sorted(set(symbols) - set(frozen)))
            print("# only in the list: %s" % sorted(set(frozen) - set(symbols)))
    print("1..%d" % number)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
