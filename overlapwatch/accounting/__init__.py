"""Numbers from a Timeline: pure functions, frozen results, one implementation for live and offline
alike.

In: a `Timeline` and a `Window`. Out: frozen dataclasses, integer ns, each with `to_dict()` and
`checks()`. It does no I/O and does not know where a timeline came from.

In reading order: `closure` (how a result shows that it adds up), `window` (which time is
accounted), `lanes` (communication and compute as unions, the one place), then what is told of them:
`partition`, `kinds`, `phases`, `exposed`, `tail`, `buckets`, `units` (modules that communicate, as
FSDP2's do), and `summarize`, `steps`, `shadow`, `analyse`, which put them together.
"""
