#!/usr/bin/env python3
"""Registers and spills of the kernels: enough of their threads must fit into a multiprocessor.

usage: kernel_resources.py NVCC SOURCE INCLUDE_FOLDER

A multiprocessor has 65,536 registers. With at most 48 for each thread, five blocks of 256 threads
are on it at once, each thread with loads of 32 bytes under way, which is enough to hide the latency
of memory. No kernel spills or has a stack.
"""

import os
import re
import subprocess
import sys
import unittest

REGISTERS_MAX = 48
ARCHITECTURES = ("sm_80", "sm_90")


def compile_for(architecture):
    """What ptxas says of the kernels."""
    nvcc, source, include = PLACES
    command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", f"-I{include}", f"-arch={architecture}",
               "-cubin", "-Xptxas=-v", "-o", os.devnull, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(" ".join(command) + "\n" + result.stdout + result.stderr)
    return result.stdout + result.stderr


def kernels_of(text):
    """(name, registers, bytes of stack and spills) of each kernel."""
    found = []
    name, stack = None, 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack = match[1], 0
        elif "stack frame" in line:
            stack = sum(map(int, re.findall(r"(\d+) bytes", line)))
        elif match := re.search(r"Used (\d+) registers", line):
            found.append((name, int(match[1]), stack))
    return found


class KernelResources(unittest.TestCase):
    def test_limits(self):
        for architecture in ARCHITECTURES:
            kernels = kernels_of(compile_for(architecture))
            self.assertGreater(len(kernels), 10)
            for name, registers, stack in kernels:
                with self.subTest(architecture=architecture, kernel=name):
                    self.assertLessEqual(registers, REGISTERS_MAX)
                    self.assertEqual(stack, 0, "bytes of stack and spills")
            print(f"{architecture}: {len(kernels)} kernels, at most "
                  f"{max(kernel[1] for kernel in kernels)} registers, no spills")

    def test_reading(self):
        text = ("ptxas info    : Compiling entry function '_Zf' for 'sm_90'\n"
                "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
                "ptxas info    : Used 40 registers, used 0 barriers\n")
        self.assertEqual(kernels_of(text), [("_Zf", 40, 16)])


if __name__ == "__main__":
    PLACES = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
