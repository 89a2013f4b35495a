#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write unicode_table.h, the ranges of letters, numbers and white space, from Python's Unicode data.

usage: make_unicode_table.py > unicode_table.h
"""
import sys
import unicodedata


def is_white_space(code):
    # The White_Space property: the separators, and these controls.
    return unicodedata.category(chr(code)) in ("Zs", "Zl", "Zp") or code in (*range(0x09, 0x0E), 0x85)


def category_starts(letter):
    return lambda code: unicodedata.category(chr(code))[0] == letter


def ranges(belongs):
    first = None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and belongs(code)
        if inside and first is None:
            first = code
        elif not inside and first is not None:
            yield first, code - 1
            first = None


def table(name, what, belongs):
    items = [f"{{0x{first:X}, 0x{last:X}}}," for first, last in ranges(belongs)]
    print(f"/* {what} */")
    print(f"static const struct unicode_range {name}[] = {{")
    line = "   "
    for item in items:
        if len(line) + 1 + len(item) > 120:
            print(line)
            line = "   "
        line += " " + item
    print(line)
    print("};")


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Made by make_unicode_table.py from Unicode {unicodedata.unidata_version}. Ranges are sorted, ends included. */")
    print("/* clang-format off */")
    table("letters", "L*", category_starts("L"))
    table("numbers", "N*", category_starts("N"))
    table("spaces", "White_Space", is_white_space)
    print("/* clang-format on */")


if __name__ == "__main__":
    main()
