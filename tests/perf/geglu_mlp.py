"""The GeGLU MLP of the seeds, without biases: fusepass, Inductor in two modes, and Liger's kernel.

    python tests/perf/geglu_mlp.py --json geglu-mlp.json        # pip install liger-kernel

8192 rows, 768 -> 3072 -> 768, tanh, bf16. Forward alone, and with the backward; replays of CUDA
graphs with cold L2, medians of microseconds; peak memory of one call beyond what is held. Liger's
fuses GELU with the product of both halves, behind two products of a library.

Prediction, written before the first run: forward 1.15 of Inductor and of Liger's, which moves what
Inductor moves; with the backward 1.08.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusepass.bench.hardware import heading
from fusepass.numerics import rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.pooling import cold

ROWS, DIM, HIDDEN = 8192, 768, 3072
MODE = "max-autotune-no-cudagraphs"


class Mlp(nn.Module):
    """As a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def combined(self, gate: Tensor, up: Tensor) -> Tensor:
        """What stands between the products."""
        return F.gelu(gate, approximate="tanh") * up

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 768) -> (rows, 768)."""
        made: Tensor = self.down(self.combined(self.gate(x), self.up(x)))
        return made


class LigerMlp(Mlp):
    """With Liger's kernel."""

    def combined(self, gate: Tensor, up: Tensor) -> Tensor:
        """Likewise."""
        from liger_kernel.ops.geglu import LigerGELUMulFunction

        made: Tensor = LigerGELUMulFunction.apply(gate, up)
        return made


def ways(plain: Mlp) -> dict[str, Callable[[Tensor], Tensor]]:
    """By name, each with parameters of its own, which are equal."""
    liger = LigerMlp().to(next(plain.parameters()))
    liger.load_state_dict(plain.state_dict())
    return {
        "inductor": torch.compile(copy.deepcopy(plain)),
        "max-autotune": torch.compile(copy.deepcopy(plain), mode=MODE),
        "liger": liger,
        "liger compiled": torch.compile(copy.deepcopy(liger)),
        "fusepass": torch.compile(copy.deepcopy(plain), backend="fusepass"),
    }


def compared(plain: Mlp, train: bool) -> dict[str, Any]:
    """Times, peaks and errors of all ways."""
    torch._dynamo.reset()
    x = torch.randn(ROWS, DIM, device="cuda", dtype=torch.bfloat16, requires_grad=train)
    upstream = torch.randn(ROWS, DIM, device="cuda", dtype=torch.bfloat16)
    exact = copy.deepcopy(plain).double()(x.double()).detach()
    calls: dict[str, Callable[[], Any]] = {}
    peaks, errors, failed = {}, {}, {}
    for name, run in ways(plain).items():

        def call(run: Any = run) -> Any:
            if not train:
                return run(x)
            return torch.autograd.grad(run(x), [x, *run.parameters()], upstream)

        try:
            with torch.set_grad_enabled(train):
                errors[name] = rms_error(run(x), exact)
                for _ in range(3):
                    call()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            with torch.set_grad_enabled(train):
                call()
            torch.cuda.synchronize()
            peaks[name] = round((torch.cuda.max_memory_allocated() - held) / 2**20, 1)
            calls[name] = torch.set_grad_enabled(train)(functools.partial(call))
        except Exception as error:  # noqa: BLE001 - Liger may not be there, or not compile
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    times = cold({name: record(call).replay for name, call in calls.items()})
    ratios = {name: round(took / times["fusepass"], 3) for name, took in times.items()}
    return {
        "microseconds": times,
        "times as long as fusepass": ratios,
        "peak_mib": peaks,
        "rms_error": errors,
        "failed": failed,
    }


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept: dict[str, Any] = heading(__doc__, "cuda")
    try:
        kept["versions"]["liger-kernel"] = metadata.version("liger-kernel")
    except metadata.PackageNotFoundError:
        kept["versions"]["liger-kernel"] = None
    torch.manual_seed(0)
    plain = Mlp().cuda().bfloat16()
    for train in (False, True):
        kept["forward and backward" if train else "forward"] = found = compared(plain, train)
        sys.stdout.write(f"{train}: {json.dumps(found)}\n")
        sys.stdout.flush()
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
