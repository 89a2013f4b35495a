#!/usr/bin/env python3
"""Install into a prefix of its own, then build and run a program against it, through pkg-config and through find_package; in
TAP. usage: test_install.py BUILD_DIR"""
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

PROGRAM = """#include <hisparse_ops.h>
#include <stdio.h>
int main(void) { printf("%s %s\\n", hsp_version(), hsp_ops_target()); return 0; }
"""
CMAKE = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(hisparse 0.1 REQUIRED)
add_executable(user user.c)
target_link_libraries(user hisparse::hisparse hisparse::hisparse_ops)
"""


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)
    if done.returncode:
        raise RuntimeError("%s\n%s" % (" ".join(command), done.stdout))
    return done.stdout


def prefixed(prefix, **more):
    library = [os.path.join(prefix, d) for d in os.listdir(prefix) if d.startswith("lib")][0]
    found = [folder for folder, _, names in os.walk(library) if "libhisparse.so" in names][0]
    return dict(os.environ, PKG_CONFIG_PATH=os.path.join(found, "pkgconfig"), LD_LIBRARY_PATH=found, **more)


def with_pkg_config(folder, prefix):
    environment = prefixed(prefix)
    flags = shlex.split(run(["pkg-config", "--cflags", "--libs", "hisparse", "hisparse_ops"], env=environment))
    program = os.path.join(folder, "by_pkg_config")
    run(["cc", os.path.join(folder, "user.c"), "-o", program] + flags, env=environment)
    return run([program], env=environment)


def with_cmake(folder, prefix):
    environment = prefixed(prefix, CMAKE_PREFIX_PATH=prefix)
    run(["cmake", "-S", folder, "-B", os.path.join(folder, "b")], env=environment)
    run(["cmake", "--build", os.path.join(folder, "b")], env=environment)
    return run([os.path.join(folder, "b", "user")], env=environment)


def planned(folder, prefix):
    """The installed command finds its presets, from another folder, too."""
    return run([os.path.join(prefix, "bin", "hisparse"), "plan", "--model", "glm-5.3", "--machine", "h200", "--csv"], cwd=folder)


def main():
    build, bad = os.path.abspath(sys.argv[1]), 0
    with open(os.path.join(build, "CMakeCache.txt")) as cache:
        if "-fsanitize" in cache.read():
            print("ok 1 - an installed tree # SKIP a program without the sanitizer cannot use libraries built with it\n1..1")
            return 0
    folder = tempfile.mkdtemp(dir=build)
    prefix = os.path.join(folder, "a prefix")
    for name, text in (("user.c", PROGRAM), ("CMakeLists.txt", CMAKE)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    run(["cmake", "--install", build, "--prefix", prefix])
    tests = (("a program built through pkg-config runs", with_pkg_config, "0.1.0 "),
             ("a program built through find_package runs", with_cmake, "0.1.0 "), ("plan finds its presets", planned, "kept,slots,"))
    for number, (what, test, begin) in enumerate(tests, 1):
        try:
            text = test(folder, prefix)
            good = text.startswith(begin)
        except (RuntimeError, IndexError) as error:
            good, text = False, str(error)
        bad += not good
        print("%s %d - %s" % ("ok" if good else "not ok", number, what))
        if not good:
            print("\n".join("# " + line for line in text.splitlines()))
    print("1..%d" % len(tests))
    shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
