"""Rank 0 ends by an exception while the others wait for it in a group of Gloo, which nobody ends.
"""

import torch
import torch.distributed as dist

dist.init_process_group("horon")
group = dist.new_group(backend="gloo")
if dist.get_rank() == 0:
    raise ValueError("as it should")
dist.all_reduce(torch.ones(3), group=group)
