#!/usr/bin/env python3
"""Reads a checkpoint as Python programs do: torch.load(file, weights_only=True).

usage: read_in_python.py FILE TORCH_FOLDER    TORCH_FOLDER: that of the torch package (the wheel)

Where the torch of the wheel can't be imported (its CUDA libraries are not installed), the wheel's
own reader of weights_only files (_weights_only_unpickler.py) reads the file, with stand-ins for
torch's classes.
"""

import importlib.util
import io
import math
import pathlib
import struct
import sys
import types
import zipfile


def with_torch(path):
    import torch
    content = torch.load(path, weights_only=True)
    return content, lambda tensor: [list(tensor.shape), tensor.flatten().tolist()]


class Anything(types.ModuleType):
    """A module or class of which every attribute is another one."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


def stand_in_for_torch():
    torch = Anything("torch")
    torch._utils = Anything("torch._utils")

    def _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks):
        return {"storage": storage, "offset": offset, "size": size, "stride": stride}

    _rebuild_tensor_v2.__module__ = "torch._utils"
    torch._utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    torch._utils.IMPORT_MAPPING = {}
    torch._utils.NAME_MAPPING = {}
    torch.serialization = Anything("torch.serialization")
    torch.serialization.StorageType = lambda name: name
    torch.serialization._maybe_decode_ascii = lambda text: text
    torch.storage = Anything("torch.storage")
    torch.storage._dtype_to_storage_type_map = dict
    torch.storage._new_dtypes = list
    torch.nn = Anything("torch.nn")
    torch._tensor = Anything("torch._tensor")
    torch._tensor_classes = set()
    torch._storage_classes = {type(kind + "Storage", (), {"__module__": "torch"})
                              for kind in ("Float", "Byte", "Long")}
    for name, module in (("torch", torch), ("torch._utils", torch._utils)):
        sys.modules[name] = module


def with_the_wheels_reader(path, torch_folder):
    stand_in_for_torch()
    spec = importlib.util.spec_from_file_location(
        "reader", pathlib.Path(torch_folder) / "_weights_only_unpickler.py")
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    archive = zipfile.ZipFile(path)
    root = archive.namelist()[0].split("/")[0]
    formats = {"FloatStorage": "<f", "LongStorage": "<q", "ByteStorage": "<B"}

    def load_storage(key):
        _, kind, name, device, count = key
        assert device == "cpu", key
        data = archive.read(f"{root}/data/{name}")
        numbers = [n for (n,) in struct.iter_unpack(formats[kind], data)]
        assert len(numbers) == count, key
        return numbers

    unpickler = reader.Unpickler(io.BytesIO(archive.read(f"{root}/data.pkl")), encoding="utf-8")
    unpickler.persistent_load = load_storage

    def plain(tensor):
        size = list(tensor["size"])
        assert tensor["offset"] == 0
        return [size, tensor["storage"][:math.prod(size)]]

    return unpickler.load(), plain


def main():
    path, torch_folder = sys.argv[1:]
    try:
        content, plain = with_torch(path)
        print("read by torch.load(weights_only=True)")
    except (ImportError, OSError, ValueError) as error:
        print(f"torch can't be imported here ({error})")
        content, plain = with_the_wheels_reader(path, torch_folder)
        print("read by the unpickler of torch.load(weights_only=True)")
    shapes = {name: plain(tensor)[0] for name, tensor in content["model"].items()}
    assert shapes == {
        "first.weight": [12, 6], "first.bias": [12], "second.weight": [1, 12], "second.bias": [1],
        "norm.weight": [12], "norm.bias": [12], "norm.running_mean": [12],
        "norm.running_var": [12], "norm.num_batches_tracked": []}, shapes
    assert plain(content["model"]["norm.num_batches_tracked"])[1] == [5]
    assert all(math.isfinite(x) for x in plain(content["model"]["first.weight"])[1])
    tensors = [plain(tensor) for tensor in content["values"].pop("tensors")]
    assert tensors == [[[2], [1, 1]]], tensors
    assert content["values"] == {"note": "chain", "rate": 0.25, "losses": [0.5, 0.25],
                                 "counts": ([1, 2],)}, content["values"]
    assert content["horon"] == {"format": 1, "ranks": 2}, content["horon"]
    assert content["optimizer"]["type"] == "torch::optim::SGD"
    assert [plain(t)[0] for t in content["optimizer"]["tensors"]] == [[12, 6], [12], [12], [12],
                                                                     [1, 12], [1]]
    assert len(content["ranks"]) == 2 and "sampler" in content["ranks"][1]
    assert zipfile.ZipFile(path).comment.startswith(b"horon checkpoint 1 number=0 step=5 ")


if __name__ == "__main__":
    main()
