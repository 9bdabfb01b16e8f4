#!/usr/bin/env python3
"""Cycles of the innermost loops of a function for 64-bit Arm, by static analysis (llvm-mca), without such a machine.

usage: aarch64_loop_cycles.py OBJECT FUNCTION [CPU = neoverse-v2]      FUNCTION is a regular expression over demangled names

Prints for each function that matches the loop with the most multiplications: its instructions, the bytes that it loads
and stores, and the cycles that the processor's execution units need for a turn if all data is in the first cache.
Needs aarch64-linux-gnu-objdump and llvm-mca 17 or later (Debian: binutils-aarch64-linux-gnu, llvm-19).
"""
import re
import shutil
import subprocess
import sys


def functions(object_file, pattern):
    text = subprocess.run(["aarch64-linux-gnu-objdump", "-d", "-C", "--no-show-raw-insn", object_file], check=True,
                          capture_output=True, text=True).stdout
    for part in re.split(r"\n\n", text):
        head, _, body = part.partition("\n")
        name = re.match(r"[0-9a-f]+ <(.*)>:", head)
        if name and re.search(pattern, name[1]):
            found = re.findall(r"^\s*([0-9a-f]+):\s+(.*)$", body, re.M)
            yield name[1], [(int(address, 16), re.sub(r"\s*(//|<).*", "", code)) for address, code in found]


def innermost_loop(code):
    index = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for i, (address, text) in enumerate(code):
        jump = re.match(r"(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+([0-9a-f]+)$", text)
        if jump and int(jump[1], 16) in index and int(jump[1], 16) <= address:
            body = [line for _, line in code[index[int(jump[1], 16)]:i + 1]]
            loops.append((sum(" fmla" in " " + line or line.startswith(("fmad", "fmul", "fdiv")) for line in body),
                          -len(body), body))
    return max(loops)[2] if loops else []


def main():
    object_file, pattern = sys.argv[1:3]
    cpu = sys.argv[3] if len(sys.argv) > 3 else "neoverse-v2"
    mca = next((name for name in ("llvm-mca-22", "llvm-mca-19", "llvm-mca-18", "llvm-mca") if shutil.which(name)), None)
    if not mca:
        sys.exit("aarch64_loop_cycles: llvm-mca is needed (apt-get install llvm-19)")
    for name, code in functions(object_file, pattern):
        body = innermost_loop(code)
        if not body:
            continue
        body[-1] = re.sub(r"\s+[0-9a-f]+$", " 0", body[-1])
        result = subprocess.run([mca, "-mtriple=aarch64", "-mcpu=" + cpu, "-mattr=+sve2", "-iterations=200"],
                                input="\n".join(body) + "\n", check=True, capture_output=True, text=True).stdout
        cycles = int(re.search(r"Total Cycles:\s+(\d+)", result)[1]) / 200
        kinds = {kind: sum(bool(re.match(kind, line)) for line in body)
                 for kind in (r"ld", r"st", r"fmla|fmad|fmls", r"fdiv", r"fsqrt")}
        print(f"{name}\n  {len(body)} instructions, {cycles:.1f} cycles on {cpu};",
              ", ".join(f"{kind.replace('|', '/')} {count}" for kind, count in kinds.items()))
        if "-v" in sys.argv:
            print("    " + "\n    ".join(body))


if __name__ == "__main__":
    main()
