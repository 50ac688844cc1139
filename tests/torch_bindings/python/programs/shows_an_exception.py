"""A part of the program shows an exception that it has caught, as the interpreter shows the one by
which it ends.
"""

import code

import torch

import horon.torch as hvd

hvd.init()
code.InteractiveInterpreter().runsource("1/0")
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
