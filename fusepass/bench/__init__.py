"""Benchmarks: eager, Inductor and fusepass timed side by side on one program.

``python -m fusepass bench`` is the way in; docs/bench.md describes the command, the method and the
JSON it writes. Who knows what:

- ``program``: what is run; ``variants``: how it is compiled.
- ``worker``: one process per variant; ``processes``: talking to them.
- ``timing`` and ``compiled_code``: measuring inside a worker; ``error_rule``: its outputs.
- ``samples``: medians, percentiles and the speed rule.
- ``measure`` and ``compile_times``: the order in which things are measured.
- ``records``: the shape of the JSON; ``table``: the text a person reads.
"""
