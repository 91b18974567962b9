"""Thin adapters: a trainer's own callback, hook or logger, which begins and ends a watch at the right moments.

    overlapwatch.integrations.lightning      WatchCallback(...)                for lightning and pytorch-lightning
    overlapwatch.integrations.transformers   WatchCallback(trainer, ...)       for Hugging Face's Trainer
    overlapwatch.integrations.accelerate     watching(accelerator, model, ...) for a loop of your own
    overlapwatch.integrations.torchtitan     register                          for its structured logger

None of these libraries is imported unless its module here is. `overlapwatch.watch()` needs none of this where a loop
can call it.
"""
