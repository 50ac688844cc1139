"""One process that torch believes to be one of two."""

import torch.distributed as dist

dist.init_process_group("horon", store=dist.HashStore(), rank=1, world_size=2)
