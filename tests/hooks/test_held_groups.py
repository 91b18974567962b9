"""A process group goes when nobody needs it any more, not while one of its threads may call us."""

import weakref

import torch.distributed as dist

from overlapwatch.hooks.held_groups import HeldGroups
from tests.support import gloo


def test_a_group_is_held_until_it_is_destroyed_and_no_callback_is_outstanding():
    awaited = [True]
    held = HeldGroups(lambda: awaited[0])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    alive = weakref.ref(group)
    held.hold(group)
    held.let_go_of_destroyed()
    dist.destroy_process_group()
    gloo.forget_kept()
    del group
    for _ in range(4):
        held.let_go_of_destroyed()
    assert alive() is not None
    awaited[0] = False
    for _ in range(3):
        held.let_go_of_destroyed()
    assert alive() is None


def test_what_hangs_is_never_dropped():
    held = HeldGroups(lambda: True)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    alive = weakref.ref(group)
    held.hold(group)
    dist.destroy_process_group()
    gloo.forget_kept()
    del group
    held.close()
    assert alive() is not None
