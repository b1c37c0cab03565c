"""Whether two checkouts decide the same and generate the same code, without a clock.

    cd old && python3 /path/to/same_code.py --out old.json --device cuda --jobs 4
    cd new && python3 /path/to/same_code.py --out new.json --device cuda --jobs 4
    python3 same_code.py compare old.json new.json

The programs are those of the suites (the zoo is suite ``models``) and the corpus of
``tests/capture/programs``. Each is compiled and called in the checkout that is the working directory,
which need not be installed, and with gradients where it is trained. The record has the decisions of
the report, the source that Inductor generates, and the source of the kernels that fusepass brings.
Names that need not agree are normalised: kernels are numbered, modules, paths and hashes hidden.

A difference is marked "words" where only the text of a reason is another one.

This file uses no name of fusepass besides its public functions, so that it runs in old checkouts.
No clock decides. Where fusepass would time candidates, each gets a time that follows from its name,
the same in both checkouts. What the device can do at most is measured. So give each checkout a copy
of one folder with its peaks (``FUSEPASS_CACHE_DIR``); choices that were learned there are not read.
In one folder for both, the source of a kernel is recorded only where it is compiled first.

``compare old.json new.json --renamed old=new`` reads the first record with other names.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import difflib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.util
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# A folder of the checkout for each package; kernels/ and patterns/ are packages inside fusepass.
_FOLDERS = {
    "fusepass": "fusepass",
    "fusepass.kernels": "kernels",
    "fusepass.patterns": "patterns",
    "tests": "tests",
}
_SUITES = ("tests.perf.suites.catalogue", "fusepass.bench.suites")  # new and old checkouts
_CORPUS = ("tests.capture.support.corpus", "tests.capture.corpus")
_TOGETHER = 40  # programs of the corpus for one process
_SECONDS = 1200  # for one process


class _Checkout(importlib.abc.MetaPathFinder):
    """Finds the packages of a checkout in front of any that are installed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        folder = self.root / _FOLDERS[name] if name in _FOLDERS else None
        if folder is None or not folder.is_dir():
            return None
        if not (folder / "__init__.py").exists():
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = [str(folder)]
            return found
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


# What is hidden in generated source, in this order.
_HIDDEN = (
    (re.compile(r"^\s*(#|//).*\n", re.MULTILINE), ""),
    (re.compile(r"AOT ID: .*"), "AOT ID"),
    (re.compile(r"(?:/[\w.+@-]+){2,}/?"), "PATH"),
    (re.compile(r"\bfusepass(?:\.(?!\w+\.default\b)\w+)+"), "fusepass"),
    (re.compile(r"\b(?:[0-9a-f]{16,}|[0-9A-F]{16,}|c[a-z2-7]{50,})\b"), "HASH"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
    (re.compile(r"\n{2,}"), "\n"),
)
_KERNEL = re.compile(
    r"\b(?:(?:triton|pallas)_(?:poi|per|red|tem|for|foreach|spl|mix|unk)_\w+"
    r"|cpp_(?:CppMicroGemm|pybinding|fused)\w+|kernel_cpp_\d+|kernel\d+)\b"
)
_SPENT = re.compile(r"; finding out took [\d.]+ s")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def normalised(text: str) -> str:
    """Generated source without what differs from one checkout, process or cache to the next."""
    for pattern, instead in _HIDDEN:
        text = pattern.sub(instead, text)
    names: dict[str, str] = {}
    return _KERNEL.sub(lambda m: names.setdefault(m[0], f"kernel_{len(names)}"), text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def decisions(report: dict[str, Any]) -> list[str]:
    """A line for each decision and graph break: sorted, measured numbers hidden."""
    found = []
    for one in report["decisions"]:
        words = [str(one.get(k)) for k in ("station", "rule", "outcome", "treatment")]
        found.append(
            f"{' '.join(words)} {one['reason_code']}: {_said(one['reason'])} {_where(one)}"
        )
    found += [
        f"graph break: {_said(one['reason'])} {_where(one)}" for one in report["graph_breaks"]
    ]
    found.append(f"graphs: {report['graphs']}")
    return sorted(found)


def _said(reason: str) -> str:
    return _NUMBER.sub("#", _SPENT.sub("", normalised(reason)))


def _where(one: dict[str, Any]) -> str:
    """The line of source itself: its number changes with what stands above it."""
    file, line = one.get("file") or "", one.get("line") or 0
    text = linecache.getline(file, line).strip()
    return f"[{Path(file).name}: {text}]" if file else ""


def kernel_sources() -> set[str]:
    """The source of each Triton kernel that there is in this process and is not torch's."""
    found = set()
    jit: Any = sys.modules.get("triton.runtime.jit")
    for one in gc.get_objects() if jit is not None else ():
        if issubclass(type(one), jit.JITFunction):
            module = str(getattr(one.fn, "__module__", ""))
            if not module.startswith(("torch", "triton")):
                found.add(str(getattr(one, "raw_src", None) or one.src))
    return {text if isinstance(text, str) else "".join(text) for text in found}


@contextlib.contextmanager
def cuda_sources() -> Iterator[list[str]]:
    """CUDA C++ that is compiled inside."""
    found: list[str] = []
    undo: list[Callable[[], None]] = []

    def listen(original: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(source: str, *rest: Any, **kwargs: Any) -> Any:
            found.append(source)
            return original(source, *rest, **kwargs)

        return compiled

    importlib.import_module("fusepass").rules()  # imports the kernels
    for name, module in list(sys.modules.items()):
        original = vars(module).get("binary_of") if name.startswith("fusepass") else None
        if callable(original):
            module.binary_of = listen(original)  # type: ignore[attr-defined]
            undo.append(lambda m=module, o=original: setattr(m, "binary_of", o))  # type: ignore[misc]
    try:
        yield found
    finally:
        for each in undo:
            each()


def _time_by_name(calls: Iterable[str], *_: Any, **__: Any) -> Any:
    """Stands in for ``time_on_device``: equal rounds, of 50 to 150 µs by the candidate's name."""
    samples: Any = importlib.import_module("fusepass.tune.timing").Samples
    return samples({name: [50 + int(_hash(name), 16) % 1000 / 10] * 5 for name in calls})


def _stop_clocks() -> None:
    """Let no time that is measured decide in this process, nor the memory that others leave."""
    tune: Any = importlib.import_module("fusepass.tune.decide")
    tune.timing.time_on_device, tune.SECONDS_PER_PROCESS = _time_by_name, float("inf")
    tune.timing._ensure_room = lambda *_: None


def _own_cache(scratch: str) -> str:
    """A cache folder for one process: compiled kernels are shared and no choice is known."""
    own = Path(tempfile.mkdtemp(dir=scratch))
    given = os.environ.get("FUSEPASS_CACHE_DIR")
    for kept in Path(given).glob("[cp][ue]*") if given else ():  # cubins, peaks-DEVICE.json
        (own / kept.name).symlink_to(kept)
    return str(own)


def program_names(root: Path, device: str) -> list[str]:
    """``suite:name`` of every program of the suites, then ``corpus:name`` of the corpus."""
    names = [f"{suite}:{p.name}" for suite, of in _suites().items() for p in of(device)]
    return names + [f"corpus:{p.name}" for p in _first(_CORPUS).CORPUS]


def _suites() -> dict[str, Callable[[str], Any]]:
    found: dict[str, Any] = _first(_SUITES).SUITES
    return found


def _first(names: Iterable[str]) -> Any:
    """The first of some modules that the checkout has."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or " "):
                raise
    raise SystemExit(f"The working directory is no checkout of fusepass: {[*names]} are missing.")


Call = Callable[[Any], None]


def _of_suite(name: str, device: str, train: bool) -> tuple[Any, dict[str, Any], list[Call]]:
    """Model, options and calls of a program of a suite; those that are trained run backward."""
    import torch

    suite, _, wanted = name.partition(":")
    program = next(p for p in _suites()[suite](device) if p.name == wanted)
    torch.set_float32_matmul_precision(program.matmul_precision)
    model, args, *rest = program.build()
    autocast = None
    if program.training is not None:
        train, autocast = True, program.training.autocast
        args = tuple(batches[0] for batches in args)

    def call(compiled: Any) -> None:
        with torch.set_grad_enabled(train):
            with torch.autocast(device, autocast, enabled=autocast is not None):
                made = compiled(*args, **(rest[0] if rest else {}))
        if train:
            _backward(made)

    return model, {}, [call]


def _of_corpus(name: str, device: str, train: bool) -> tuple[Any, dict[str, Any], list[Call]]:
    """The same of a program of the corpus: one call for each set of its inputs."""
    import torch

    programs = _first(_CORPUS).CORPUS
    program = next(p for p in programs if p.name == name.partition(":")[2])
    train = program.grad

    def one_call(inputs: tuple[Any, ...]) -> Call:
        def call(compiled: Any) -> None:
            for place, given in enumerate(inputs if train else ()):
                for tensor in () if place in program.frozen else _tensors(given):
                    if tensor.is_floating_point() and tensor.is_leaf:
                        tensor.requires_grad_()
            with torch.set_grad_enabled(train):
                made = compiled(*inputs)
            if train:
                _backward(made)

        return call

    options = {k: v for k, v in program.options.items() if k != "codegen"}
    return program.make(), options, [one_call(inputs) for inputs in program.inputs(0)]


def _backward(made: Any) -> None:
    outputs = [out for out in _tensors(made) if out.requires_grad and out.is_floating_point()]
    if outputs:
        sum(out.double().sum() for out in outputs).backward()


def _tensors(tree: Any) -> Iterator[Any]:
    import torch

    leaves = torch.utils._pytree.tree_leaves(tree)
    yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def recorded(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compile and call one program: its decisions, its source and how it ended."""
    import torch
    from torch._inductor.utils import run_and_get_code

    import fusepass

    backend = importlib.import_module("fusepass.backend").fusepass
    with contextlib.suppress(AssertionError):  # it is installed, and registered already
        torch._dynamo.register_backend(backend, name="fusepass")
    ends: list[str] = []

    def run() -> None:
        for call in calls:
            try:
                call(compiled)
                ends.append("returned")
            except Exception as error:  # noqa: BLE001  # programs of the corpus raise
                ends.append(f"raised {type(error).__name__}")

    device, corpus = arguments.device, name.startswith("corpus:")
    torch.manual_seed(20)
    # Programs of the corpus name no device; one that is set is a mode, which Dynamo traces.
    there = torch.device(device) if corpus and device != "cpu" else contextlib.nullcontext()
    with there, cuda_sources() as cuda, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        built = (_of_corpus if corpus else _of_suite)(name, device, arguments.train)
        model, options, calls = built
        if arguments.codegen:
            options = {**options, "codegen": arguments.codegen}
        compiled = torch.compile(model, backend="fusepass", options=options or None)
        _, code = run_and_get_code(run)
    report = fusepass.last_report(compiled).to_dict()
    torch._dynamo.reset()
    return {"ends": ends, "decisions": decisions(report), "code": [*code, *cuda]}


def worker(names: list[str], arguments: argparse.Namespace) -> None:
    """Record some programs in this process, each at once: a later one may end the process."""
    programs: dict[str, Any] = {}
    texts: dict[str, str] = {}

    def kept(text: str) -> str:
        text = normalised(text)
        key = _hash(text)
        texts[key] = text
        return key

    _stop_clocks()
    for name in names:
        try:
            found = recorded(name, arguments)
            programs[name] = {**found, "code": [kept(text) for text in found["code"]]}
        except Exception as error:  # noqa: BLE001  # one program is not all
            programs[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        kernels = sorted({kept(text) for text in kernel_sources()})
        part = {"programs": programs, "texts": texts, "kernels": kernels}
        arguments.out.write_text(json.dumps(part))


def _chunks(names: Iterable[str]) -> list[list[str]]:
    """A process for each program of a suite; those of the corpus share some."""
    found: list[list[str]] = []
    corpus: list[str] = []
    for name in names:
        if not name.startswith("corpus:"):
            found.append([name])
            continue
        corpus.append(name)
    return found + [corpus[i : i + _TOGETHER] for i in range(0, len(corpus), _TOGETHER)]


def _in_process(names: list[str], arguments: argparse.Namespace, scratch: str) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w+", suffix=".json", dir=scratch) as answer:
        command = [sys.executable, str(Path(__file__).resolve()), "--tree", str(arguments.tree)]
        command += ["--out", answer.name, "--device", arguments.device]
        command += ["--codegen", arguments.codegen] if arguments.codegen else []
        command += ["--train"] if arguments.train else []
        command += ["--names", json.dumps(names)]
        # Nothing comes out of a cache, and kernels are compiled in the process that asks for them.
        one = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        one["FUSEPASS_CACHE_DIR"] = _own_cache(scratch)
        said = ""
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                env={**os.environ, **one},
                capture_output=True,
                text=True,
                timeout=arguments.seconds,
                check=False,
            )
            said = done.stderr[-300:]
        except subprocess.TimeoutExpired:
            said = f"not done after {arguments.seconds} s"
        print(f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0], flush=True)
        text = Path(answer.name).read_text()
        found: dict[str, Any] = {"programs": {}, "texts": {}, "kernels": []}
        found = json.loads(text) if text else found
        found["programs"] = {n: {"error": said} for n in names} | found["programs"]
        return found


def record(arguments: argparse.Namespace) -> None:
    """Record all programs that were asked for."""
    names = program_names(arguments.tree, arguments.device)
    if arguments.only:
        names = [n for n in names if any(n.startswith(one) for one in arguments.only)]
    # By name: a checkout may have programs that the other lacks.
    names = [n for n in names if int(_hash(n), 16) % arguments.sample == 0]
    total: dict[str, Any] = {"programs": {}, "texts": {}, "kernels": []}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(arguments.jobs) as pool:
        for part in pool.map(lambda n: _in_process(n, arguments, scratch), _chunks(names)):
            total["programs"] |= part["programs"]
            total["texts"] |= part["texts"]
            total["kernels"] = sorted({*total["kernels"], *part["kernels"]})
            arguments.out.write_text(json.dumps(total, indent=1))


def compare(old: dict[str, Any], new: dict[str, Any], lines: int = 40) -> list[str]:
    """What differs between two records, in words; nothing if they are equal."""
    said: list[str] = []
    one, other = old["programs"], new["programs"]
    for where, names in (
        ("first", one.keys() - other.keys()),
        ("second", other.keys() - one.keys()),
    ):
        said += [f"{name}: in the {where} record only" for name in sorted(names)]
    for name in (name for name in one if name in other):
        a, b = one[name], other[name]
        if "error" in a or "error" in b:
            if a.get("error") != b.get("error"):
                said.append(f"{name}: {a.get('error', 'recorded')} / {b.get('error', 'recorded')}")
            continue
        if a["ends"] != b["ends"]:
            said.append(f"{name}: ends {a['ends']} / {b['ends']}")
        said += _decided(name, a["decisions"], b["decisions"])
        texts = [[t["texts"][k] for k in p["code"]] for t, p in ((old, a), (new, b))]
        if texts[0] != texts[1]:
            said.append(f"{name}: other code ({len(texts[0])} / {len(texts[1])} graphs)")
            said += _diff("\n".join(texts[0]), "\n".join(texts[1]), lines)
    before, after = ({t["texts"][key] for key in t["kernels"]} for t in (old, new))
    gone, come = sorted(before - after), sorted(after - before)
    if gone or come:
        said.append(f"kernels: {len(gone)} only in the first record, {len(come)} in the second")
        said += _diff("\n".join(gone), "\n".join(come), lines)
    return said


def _decided(name: str, old: list[str], new: list[str]) -> list[str]:
    one, other = collections.Counter(old), collections.Counter(new)
    gone, come = sorted((one - other).elements()), sorted((other - one).elements())
    words = sorted(map(_head, gone)) == sorted(map(_head, come))
    name = f"{name}: words" if words else f"{name}:"
    return [f"{name} - {line}" for line in gone] + [f"{name} + {line}" for line in come]


def _head(line: str) -> str:
    """A decision without its reason: what was decided, the code, the line of source."""
    code, _, rest = line.partition(": ")
    return f"{code} {rest[rest.rfind(' [') :] if rest.endswith(']') else ''}"


def _diff(old: str, new: str, lines: int) -> list[str]:
    found = difflib.unified_diff(old.splitlines(), new.splitlines(), n=1, lineterm="")
    shown = [f"    {line}" for line in list(found)[2:]]
    return shown[:lines] + ([f"    … {len(shown) - lines} more lines"] if shown[lines:] else [])


def main() -> None:
    """Record, or compare two records."""
    if sys.argv[1:2] == ["compare"]:
        first, new = (Path(name).read_text() for name in sys.argv[2:4])
        for pair in sys.argv[5:]:
            first = re.sub(rf"\b{pair.partition('=')[0]}\b", pair.partition("=")[2], first)
        old, new = json.loads(first), json.loads(new)
        said = compare(old, new)
        print("\n".join(said) or "No difference.")
        common = len(old["programs"].keys() & new["programs"].keys())
        differ = {line.split(": ")[0] for line in said if not line.startswith(" ")}
        worded = differ - {l.split(": ")[0] for l in said if l[0] != " " and ": words " not in l}
        print(f"{common} programs in both; {len(differ)} differ, {len(worded)} in words only")
        sys.exit(bool(said))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the record to write, JSON")
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="the checkout")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", nargs="*", default=(), help="names begin so, as corpus:numbers")
    parser.add_argument("--sample", type=int, default=1, help="one program in so many")
    parser.add_argument("--codegen", help="eager: decisions only, no code is generated")
    parser.add_argument("--train", action="store_true", help="models of the suites run backward")
    parser.add_argument("--seconds", type=int, default=_SECONDS, help="for one process")
    parser.add_argument("--names", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out, arguments.tree = arguments.out.resolve(), arguments.tree.resolve()
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != Path(here)]
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != arguments.tree]
    sys.meta_path.insert(0, _Checkout(arguments.tree))
    if arguments.names:
        worker(arguments.names, arguments)
    else:
        record(arguments)


if __name__ == "__main__":
    main()
