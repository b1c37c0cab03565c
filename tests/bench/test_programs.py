from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from torch import nn

from fusepass.bench.program import (
    check_built,
    load_function,
    select,
    split_target,
    suite_programs,
)
from fusepass.errors import BenchError
from tests.perf.suites.sync import ClampEncoder


@pytest.fixture
def target_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("import beside\ndef make():\n    return beside.MODEL, (1,)\nnumber = 3\n")
    (tmp_path / "beside.py").write_text("MODEL = len\n")
    (tmp_path / "broken.py").write_text("import no_such_thing_at_all\n")
    return path


def test_a_file_can_import_its_neighbours(target_file: Path):
    assert load_function(f"{target_file}:make")() == (len, (1,))


def test_a_module_is_loaded_by_name():
    assert load_function("fractions:Fraction")() == 0


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_colon", "names no function"),
        ("module:", "names no function"),
        (":make", "names no function"),
        ("module:not a name", "names no function"),
        ("nowhere/to/be/found.py:make", "no file"),
        ("no_such_module_anywhere:make", "no module named"),
        ("no_such_package.inner:make", "cannot find module"),
        ("{file}:absent", "it has: make"),
        ("{file}:number", "not callable"),
        ("{broken}:make", "ModuleNotFoundError: No module named 'no_such_thing_at_all'"),
    ],
)
def test_a_bad_target_is_one_clear_error(target_file: Path, target: str, says: str):
    text = target.format(file=target_file, broken=target_file.with_name("broken.py"))
    with pytest.raises(BenchError, match=says.replace("'", "['\"]")) as caught:
        load_function(text)
    assert str(caught.value).startswith("fusepass bench: ")


def test_split_target_keeps_colons_of_the_path():
    with pytest.raises(BenchError, match=r"no file 'C:/x\.py'"):
        split_target("C:/x.py:make")


def test_inputs_come_as_a_tuple_or_as_args_and_kwargs():
    x = torch.ones(2)
    assert check_built((len, (x,)), "t") == (len, (x,), {})
    assert check_built((len, [x, x]), "t").args == (x, x)
    assert check_built((len, ((x,), {"dim": 0})), "t") == (len, (x,), {"dim": 0})
    # A function of a tensor and a dict: the first is no tuple, so these are two arguments.
    assert check_built((len, (x, {"dim": 0})), "t").args == (x, {"dim": 0})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "returned NoneType"),
        (len, "returned builtin_function_or_method"),
        ((1, (2,)), "returned a tuple of 2"),
        ((len, (1,), {}), "returned a tuple of 3"),
        ((len, torch.ones(2)), "are Tensor, not a tuple"),
    ],
)
def test_anything_else_is_refused(value: object, says: str):
    with pytest.raises(BenchError, match=says):
        check_built(value, "module:make")


def test_only_selects_by_name_beginning_and_glob():
    programs = suite_programs("sync", "cpu")
    names = [one.name for one in programs]
    assert len(names) == len(set(names)) == 8
    assert [one.name for one in select(programs, ["bart"])] == ["bart-short", "bart-long"]
    assert [one.name for one in select(programs, ["*-long", "branch-on-sum"])] == [
        "clamp-encoder-long", "bart-long", "longt5-long", "branch-on-sum",
    ]  # fmt: skip
    assert select(programs, []) == list(programs)
    with pytest.raises(BenchError, match="Did you mean 'bart-short'"):
        select(programs, ["bert-short"])
    with pytest.raises(BenchError, match=r"no suite 'sink'.*: sync"):
        suite_programs("sink", "cpu")


@pytest.mark.parametrize("scale", [1.0, 1e38])
def test_the_clamp_encoders_twin_computes_the_same_without_a_break(scale: float):
    torch.manual_seed(0)
    encoder = ClampEncoder(2, 16, 32).eval()
    twin = ClampEncoder(2, 16, 32, branch=False).eval()
    twin.load_state_dict(encoder.state_dict())
    x = torch.randn(4, 16) * scale
    if scale > 1:
        x[0, 0] = torch.inf
    with torch.no_grad():
        expected = encoder(x)
        torch.testing.assert_close(
            torch.compile(twin, backend="eager", fullgraph=True)(x), expected, equal_nan=True
        )
    torch.compiler.reset()
    assert bool(expected.isfinite().all()) is (scale == 1.0 or not expected.isnan().any())


@pytest.mark.parametrize("overflow", [False, True])
def test_barts_twin_computes_the_same_without_a_break(overflow: bool):
    pytest.importorskip("transformers")
    (program,) = [one for one in suite_programs("sync", "cpu") if one.name == "bart-short"]
    outputs = []
    for build in (program.build, program.twin):
        assert build is not None
        torch.manual_seed(0)
        model, args, kwargs = check_built(build(), program.name)
        assert isinstance(model, nn.Module)
        if overflow:
            for name, weight in model.named_parameters():
                # The last layer's: what it hands on is what its guard made of it.
                if "encoder.layers.2" in name and "final_layer_norm" in name:
                    weight.data.fill_(60000.0)
        with torch.no_grad():
            if build is program.twin:
                model = torch.compile(model, backend="eager", fullgraph=True)
            outputs.append(model(*args, **kwargs))
    torch.compiler.reset()
    ours, twins = (one.encoder_last_hidden_state for one in outputs)
    torch.testing.assert_close(twins, ours, rtol=0, atol=0)
    assert float(ours.abs().max()) == (64512.0 if overflow else pytest.approx(3, abs=2))


@pytest.mark.parametrize("weights", [None, "block.1.layer.0.*.o.weight", "block.2.layer.1.*.wo.*"])
def test_longt5s_twin_computes_the_same_without_a_break(weights: str | None):
    pytest.importorskip("transformers")
    (program,) = [one for one in suite_programs("sync", "cpu") if one.name == "longt5-short"]
    outputs = []
    for build in (program.build, program.twin):
        assert build is not None
        torch.manual_seed(0)
        model, args, kwargs = check_built(build(), program.name)
        assert isinstance(model, nn.Module)
        loud = 0
        for name, weight in model.named_parameters():
            # The twin's wrappers stand in the names.
            plain = name.replace("block.module.", "").replace(".block.layer", ".layer")
            if weights is not None and fnmatchcase(plain.replace(".module", ""), f"*{weights}"):
                weight.data.fill_(60000.0)
                loud += 1
        assert loud == (weights is not None)
        with torch.no_grad():
            if build is program.twin:
                model = torch.compile(model, backend="eager", fullgraph=True)
            outputs.append(model(*args, **kwargs)[0])
    torch.compiler.reset()
    ours, twins = outputs
    torch.testing.assert_close(twins, ours, rtol=0, atol=0)
    assert ours.isfinite().all()  # without the guard infinity would have become NaN


def test_the_sums_twin_takes_the_same_side():
    (program,) = [one for one in suite_programs("sync", "cpu") if one.name == "branch-on-sum"]
    assert program.twin is not None
    (ours, (a, b, c)), (twin, _) = program.build(), program.twin()
    whole = torch.zeros_like(a), torch.zeros_like(b)  # an even sum: the other side
    for left, right in ((a, b), whole, (a.fill_(torch.nan), b)):
        torch.testing.assert_close(twin(left, right, c), ours(left, right, c), equal_nan=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_program_of_the_suite_has_a_twin(device: str):
    assert all(program.twin is not None for program in suite_programs("sync", device))
