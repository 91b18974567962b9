"""Megatron-Core: what its wrapper, its bucket groups and its parallel layers do, by instance and by name."""
