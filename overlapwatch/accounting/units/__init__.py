"""Modules that are communication units (FSDP2, HSDP): numbers by module from a Timeline.

In: a Timeline whose collectives are owned by modules, a Window. Out: frozen dataclasses with
`to_dict()` and `checks()`. What no module owns is not told here.

In reading order: `modules` (all-gathers, reduce-scatters and all-reduces by module and phase),
`uses` (did the parameters arrive before they were needed), `edges` (the first all-gather and the
last reduction of a step, which nothing can hide), `order` (what was prefetched before its turn),
`queueing` (what stood behind what on one communicator), `residency` (memory held by unsharded
parameters), and `told`, which puts them together.
"""
