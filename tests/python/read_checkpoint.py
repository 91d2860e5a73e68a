"""Reads a checkpoint as any other tool does, with the packages safetensors and numpy, and checks what a scenario put there."""

import hashlib
import json
import pathlib
import sys

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file

directory = pathlib.Path(sys.argv[1])
manifest = json.loads((directory / "manifest.json").read_text())
assert (manifest["format"], manifest["version"]) == ("dchost-checkpoint", 1), manifest

tensors = {}
for file in manifest["files"]:
    path = directory / file["name"]
    data = path.read_bytes()
    assert len(data) == file["bytes"] and hashlib.sha256(data).hexdigest() == file["sha256"], file
    with safe_open(path, framework="numpy") as opened:
        assert set(opened.metadata()) == {"dchost"}, opened.metadata()
    for name, tensor in load_file(path).items():
        assert name not in tensors, name
        tensors[name] = tensor

kinds = {"f32": "float32", "f64": "float64", "s32": "int32", "s64": "int64", "u8": "uint8"}
for variable in manifest["variables"]:
    tensor = tensors[variable["tensor"]]
    assert (str(tensor.dtype), list(tensor.shape)) == (kinds[variable["dtype"]], variable["shape"]), variable
    for slot in variable.get("slots", {"tensors": []})["tensors"]:
        assert tensors[slot["tensor"]].shape == tensor.shape, slot


def expect(name, dtype, values):
    values = numpy.array(values, dtype=dtype)
    tensor = tensors[name]
    assert tensor.dtype == values.dtype and tensor.shape == values.shape, (name, tensor.dtype, tensor.shape)
    assert (tensor == values).all(), (name, tensor)


expect("known/f32", numpy.float32, [[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]])
expect("known/f64", numpy.float64, 0.1)
expect("known/s32", numpy.int32, [-1, 2, 2147483647])
expect("known/s64", numpy.int64, [-(2**63)])
expect("known/u8", numpy.uint8, [0, 7, 255])
expect("known/empty", numpy.float32, numpy.zeros((0, 4)))
expect("known/größe", numpy.float64, [1.0, 2.0])
expect("step", numpy.int64, 5)

# In parts on the ps tasks, whole here: each row of the gradient is its number, so that Adam's means are rows as well.
table, first, second = (tensors[name] for name in ("table", "table/adam/m", "table/adam/v"))
assert table.shape == (1024, 256) and table.dtype == numpy.float32
for tensor in (table, first, second):
    assert (tensor == tensor[:, :1]).all(), "the elements of a row are the same"
rows = numpy.arange(1024) / 1024 + 0.5
assert numpy.allclose(first[:, 0], rows * (1 - 0.9**5), rtol=1e-5), first[:, 0]
assert numpy.allclose(second[:, 0], rows**2 * (1 - 0.999**5), rtol=1e-4), second[:, 0]
# With the same gradient at each step, each is as long as the learning rate.
assert numpy.allclose(table[:, 0], -0.05, rtol=1e-4), table[:, 0]

print(f"{len(tensors)} tensors")
