"""Lightning over Horon, under mpirun or srun, without mpi4py:

    import horon.lightning
    trainer = lightning.Trainer(accelerator="cpu", strategy="horon")
    fabric = lightning.Fabric(accelerator="cpu", strategy="horon")

or, to give options of DDPStrategy, and in jobs of Slurm (given a name, Lightning first makes an
environment of its own for Slurm, which wants --ntasks-per-node):

    strategy = horon.lightning.HoronStrategy(find_unused_parameters=True)  # of a Trainer
    strategy = horon.lightning.HoronFabricStrategy(find_unused_parameters=True)

Ranks, hosts and devices are those of MPI: num_nodes and devices need not be told. Other strategies
take plugins=[HoronEnvironment()].
"""

import os

try:
    from lightning.fabric import strategies as of_fabric
    from lightning.fabric.plugins.environments import ClusterEnvironment
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
except ModuleNotFoundError as missing:
    if missing.name != "lightning":
        raise
    from lightning_fabric import strategies as of_fabric
    from lightning_fabric.plugins.environments import ClusterEnvironment
    from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry

from horon import native
from horon.process_group import address_of_rank_0, started_by_mpi
from horon.torch import basics

# As the job gives it. A Trainer sets both variables to what its environment tells it.
_MASTER = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")


class HoronEnvironment(ClusterEnvironment):
    """Who the ranks are, from MPI. Collective over all ranks: starts Horon."""

    def __init__(self):
        super().__init__()
        basics.init()
        self._main = None

    @property
    def creates_processes_externally(self):
        return True

    @property
    def main_address(self):
        return self._address_of_rank_0()[0]

    @property
    def main_port(self):
        return self._address_of_rank_0()[1]

    def _address_of_rank_0(self):
        # Collective once: every rank asks for it when it makes the process group.
        if self._main is None:
            given = _MASTER if all(_MASTER) else (None, None)
            self._main = address_of_rank_0(given, "horon.lightning.address")
        return self._main

    @staticmethod
    def detect():
        return started_by_mpi()

    def world_size(self):
        return native.size()

    def global_rank(self):
        return native.rank()

    def local_rank(self):
        return native.local_rank()

    def node_rank(self):
        return native.cross_rank()

    # Lightning computes them from num_nodes and devices; MPI knows.
    def set_world_size(self, size):
        pass

    def set_global_rank(self, rank):
        pass

    def validate_settings(self, num_devices, num_nodes):
        started = native.size()
        if num_devices * num_nodes != started:
            raise ValueError(
                f"Trainer(devices={num_devices}, num_nodes={num_nodes}) asks for "
                f"{num_devices * num_nodes} processes, but MPI has started {started}: set devices "
                f"to the ranks per host, or use strategy=\"horon\", which takes MPI's numbers")


class _EnvironmentOfStrategy(HoronEnvironment):
    """Of a strategy that takes the numbers of hosts and ranks from MPI: there is nothing to
    compare, and hosts may have unlike numbers of ranks."""

    def validate_settings(self, num_devices, num_nodes):
        pass


class _OnRanksOfMpi:
    """What a strategy for DDP takes from MPI."""

    strategy_name = "horon"

    def __init__(self, **options):
        options.setdefault("cluster_environment", _EnvironmentOfStrategy())
        options.setdefault("process_group_backend", "horon")
        super().__init__(**options)

    @property
    def num_nodes(self):
        return native.cross_size()

    @num_nodes.setter
    def num_nodes(self, _):
        pass

    @property
    def distributed_sampler_kwargs(self):
        # DDPStrategy multiplies the hosts by the ranks of this one; others may have more or fewer.
        return {"num_replicas": native.size(), "rank": native.rank()}

    @property
    def parallel_devices(self):
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices):
        on_cpu = devices and all(device.type == "cpu" for device in devices)
        self._parallel_devices = devices[:1] * native.local_size() if on_cpu else devices


class HoronStrategy(_OnRanksOfMpi, DDPStrategy):
    """DDP with the process group "horon", on the ranks that MPI has started."""


class HoronFabricStrategy(_OnRanksOfMpi, of_fabric.DDPStrategy):
    """The same for Fabric."""


for _registry, _strategy in ((StrategyRegistry, HoronStrategy),
                             (of_fabric.STRATEGY_REGISTRY, HoronFabricStrategy)):
    if "horon" not in _registry:
        _registry.register("horon", _strategy, description=HoronStrategy.__doc__)
