"""Writes the files of this folder with the real PyTorch (made with 2.11.0, on a CPU).

usage: python3 make.py [FOLDER]      (PYTHONPATH must hold torch; NumPy is not needed)

good/*.pt    read by torch.load; good/expected.json says what is in them
refused/*.pt must be refused; refused/expected.json says which words the message must contain
rotations/*.pt are rotation files: same_* hold one matrix in many guises, overlap_* and repeated_*
               are refused although torch.load reads them
"""

import collections
import json
import pathlib
import sys
import types
import zipfile

import torch

from describe import describe

HERE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
ROOT = HERE if HERE.is_dir() else HERE.parent


def base():
    return torch.arange(48, dtype=torch.float32).reshape(6, 8) / 4 - 3


def calibration():
    """The extra dict of files that carry their calibration metadata."""
    return {
        "generation_id": "0f3c", "model_revision": None, "tokens": 20000, "tp_size": 1,
        "post_rope": True, "complete": False, "created_at_unix": 1790000000.125,
        "tiny": 5e-324, "infinite": float("inf"), "accumulator_dtype": "float64",
        "prompt_sha256": ["ab" * 32, "cd" * 32], "nested": {"a": {"b": [1, 2.5, None, True]}},
        "bytes_seen": 2**62, "offset": -(2**40), "small": -1, "byte": 255, "word": 65535,
        "text": "Gr\u00f6\u00dfe \u4f60\u597d \U0001f600", "tuple": (1, (2, "x"), ()),
    }


def good():
    shared = torch.arange(32, dtype=torch.float32)
    model_state = collections.OrderedDict([("weight", base()), ("bias", base()[0].clone())])
    model_state._metadata = collections.OrderedDict([("", {"version": 1})])
    integers = {name: torch.tensor([0, 1, -3, 100], dtype=getattr(torch, name))
                for name in ("int64", "int32", "int16", "int8")}
    reals = {name: torch.tensor([0.0, -0.5, 1.5, 2.0**-14, 3.0e-5], dtype=getattr(torch, name))
             for name in ("float64", "float32", "float16", "bfloat16")}
    long_list = list(range(1001))
    yield "contiguous", base()
    yield "transposed", base().t()
    yield "offset", base()[2:, 1:7:2]
    yield "expanded", torch.tensor([[1.0], [2.0]]).expand(2, 5)
    yield "scalar", torch.tensor(2.75, dtype=torch.float64)
    yield "empty", {"a": torch.zeros(0), "b": torch.zeros(3, 0, 2), "c": {}, "d": [], "e": ()}
    yield "shared", {"whole": shared, "tail": shared[8:], "square": shared[:16].view(4, 4).t()}
    yield "same_object", [model_state["bias"]] * 3
    yield "dtypes", {**integers, **reals, "uint8": torch.tensor([0, 255], dtype=torch.uint8),
                     "bool": torch.tensor([True, False, True])}
    yield "four_dims", torch.arange(24, dtype=torch.bfloat16).view(1, 2, 3, 4).transpose(1, 2)
    yield "calibration", {"format_version": 1, "calibration": calibration(), "layers": {7: base()}}
    yield "state_dict", model_state
    yield "long_containers", {"list": long_list, "dict": {str(i): i for i in long_list}}


def rezip(source, target, root, **options):
    """Packs the members again, as a user with an ordinary zip program would."""
    compression = options.pop("compression", zipfile.ZIP_STORED)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            member = zipfile.ZipInfo(root + name.split("/", 1)[1])
            member.compress_type = compression
            content = options.get("replace", {}).get(name.split("/", 1)[1], old.read(name))
            with new.open(member, "w", force_zip64=options.get("zip64", False)) as out:
                out.write(content)


class Call:
    """Pickles as a call of `module.name`."""

    def __init__(self, module, name, *args):
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            package = types.ModuleType(".".join(parts[:i]))
            package.__path__ = []
            sys.modules.setdefault(package.__name__, package)
        parent = sys.modules[module]
        if not hasattr(parent, name):
            function = types.FunctionType((lambda *a: None).__code__, {}, name)
            function.__module__, function.__qualname__ = module, name
            setattr(parent, name, function)
        self.parts = getattr(parent, name), args

    def __reduce__(self):
        return self.parts


def refused():
    yield "system_call", {"x": Call("os", "system", "echo executed")}, "system"
    yield "numpy_scalar", {"clip": Call("numpy.core.multiarray", "scalar", "f8", 1)}, \
        "numpy.core.multiarray.scalar"
    yield "new_numpy_scalar", {"clip": Call("numpy._core.multiarray", "scalar", "f8", 1)}, \
        "numpy._core.multiarray.scalar"
    yield "complex", torch.zeros(2, dtype=torch.complex64), "torch.ComplexFloatStorage"
    yield "parameter", torch.nn.Parameter(base()), "torch._utils._rebuild_parameter"
    yield "float8", torch.zeros(2, dtype=torch.float8_e4m3fn), "refused global torch"
    yield "dtype_value", {"dtype": torch.float32}, "torch.float32"
    yield "set_value", {"set": {1, 2}}, "set"
    yield "bytes_value", {"bytes": b"\xff"}, "_codecs.encode"
    yield "big_integer", {"n": 2**64}, "64 bits"


def rotation_files():
    """Rotation files over one 4 x 4 matrix whose entries every floating type holds exactly."""
    matrix = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [-1, 1, 1, -1]]) / 2
    values = torch.tensor([1.0, 2.0, 4.0, 8.0])

    def file(*layers, **more):
        entries = {3 + i: {"layer_id": 3 + i, "rotation": r, "eigenvalues": e}
                   for i, (r, e) in enumerate(layers)}
        return {"format_version": 1, "objective": "qqt_r_h_pbr", "source_grouping": "layer",
                "layers": entries, **more}

    padded = torch.full((6, 7), float("nan"))
    padded[1:5, 2:6] = matrix
    both = torch.arange(48, dtype=torch.float32)
    views = {
        "contiguous": matrix, "transposed": matrix.t().contiguous().t(), "slice": padded[1:5, 2:6],
        "float64": matrix.double(), "float16": matrix.half(), "bfloat16": matrix.bfloat16()}
    for name, view in views.items():
        yield f"same_{name}", file((view, values))
    yield "same_deep", file((matrix, values), calibration=calibration())
    yield "overlap_rows", file((both[:16].view(4, 4), values), (both[8:24].view(4, 4), values))
    yield "overlap_transposed", file((both[:16].view(4, 4), values),
                                     (both[:16].view(4, 4).t(), values))
    yield "overlap_eigenvalues", file((both[:16].view(4, 4), both[12:16]))
    yield "repeated_row", file((matrix[:1].expand(4, 4), values))
    yield "shared_whole", file((matrix, values), (matrix, values))
    yield "shared_apart", file((both[:16].view(4, 4), both[32:36]), (both[16:32].view(4, 4), values))


def main():
    for folder in ("good", "refused"):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, value in good():
        torch.save(value, ROOT / "good" / f"{name}.pt")
        expected[name] = describe(value)
    for protocol in (3, 4, 5):
        name = f"protocol{protocol}"
        value = {"calibration": calibration(), "tensor": base().t(), "list": list(range(300))}
        torch.save(value, ROOT / "good" / f"{name}.pt", pickle_protocol=protocol)
        expected[name] = describe(value)
    source = ROOT / "good" / "shared.pt"
    for name, root, options in (
            ("deflated", "other root/", {"compression": zipfile.ZIP_DEFLATED}),
            ("no_root", "", {}), ("zip64", "a/b/", {"zip64": True}),
            ("zip64_deflated", "z/", {"zip64": True, "compression": zipfile.ZIP_DEFLATED})):
        rezip(source, ROOT / "good" / f"{name}.pt", root, **options)
        expected[name] = expected["shared"]
    (ROOT / "good" / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")

    (ROOT / "rotations").mkdir(exist_ok=True)
    for name, value in rotation_files():
        torch.save(value, ROOT / "rotations" / f"{name}.pt")

    words = {}
    for name, value, word in refused():
        torch.save(value, ROOT / "refused" / f"{name}.pt")
        words[name] = word
    torch.save(base(), ROOT / "refused" / "legacy.pt", _use_new_zipfile_serialization=False)
    words["legacy"] = "legacy torch file"
    rezip(source, ROOT / "refused" / "big_endian.pt", "r/", replace={"byteorder": b"big"})
    words["big_endian"] = "byte order"
    rezip(source, ROOT / "refused" / "bzip2.pt", "r/", compression=zipfile.ZIP_BZIP2)
    words["bzip2"] = "compression method 12"
    with zipfile.ZipFile(ROOT / "refused" / "no_pickle.pt", "w") as empty:
        empty.writestr(zipfile.ZipInfo("r/version"), "3\n")
    words["no_pickle"] = "data.pkl"
    (ROOT / "refused" / "expected.json").write_text(json.dumps(words, indent=0) + "\n")


if __name__ == "__main__":
    main()
