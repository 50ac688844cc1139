"""A program that no launcher has started starts one like itself."""

import subprocess
import sys

import horon.torch as hvd

hvd.init()
if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, __file__, "child"]))
