"""Two ranks that train by Accelerate, which takes the process group that is there."""

import torch
import torch.distributed as dist

from accelerate import Accelerator

dist.init_process_group("horon")
accelerator = Accelerator(cpu=True)
assert (accelerator.process_index, accelerator.num_processes) == (dist.get_rank(), 2)
torch.manual_seed(1)
model = torch.nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
numbers = torch.arange(4.0).unsqueeze(1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(numbers), batch_size=2)
begin = model.weight.item()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
for (inputs,) in loader:
    accelerator.backward(model(inputs).mean())
    optimizer.step()
seen = accelerator.gather_for_metrics(inputs).flatten().sort().values
assert seen.tolist() == [0, 1, 2, 3]
moved = begin - model.module.weight.item()
assert abs(moved - numbers.mean().item()) < 1e-5, moved
assert dist.get_backend() == "horon"
accelerator.end_training()
print("trained by Accelerate", flush=True)
