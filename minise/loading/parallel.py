"""Many processes that torchrun started: which one answers what, and how process 0 gets the answers.

They share torch's key-value store and nothing else: a counter deals out the questions, and an
answer is a line of text under a key. Process 0 alone prints messages and writes files.
"""

from __future__ import annotations

import itertools
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minise.errors import InputError, by_torchrun, is_memory, one_line, shorten

if TYPE_CHECKING:
    from minise.loading.tensor_parallel import Share

PAUSE = 0.01  # seconds between two looks at the store


def restarted() -> bool:
    """Whether torchrun started the processes again after one of them died."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


@dataclass(frozen=True, eq=False)
class World:
    """The processes of a run, in teams of `width`. The processes of a team share one model and run
    the same passes at the same time; `share` is the part of this one. A single process has no store
    (None)."""

    rank: int = 0
    size: int = 1
    store: Any = None
    width: int = 1
    share: Share | None = None

    @property
    def leads(self) -> bool:
        """Whether it is the first process of its team, which sends the team's answers."""
        return self.rank % self.width == 0

    def claim(self, name: str, count: int) -> Iterator[int]:
        """Some of the numbers 0 ... count - 1: each goes to one team, the first that is free. So a
        slow team gets fewer, and no team waits for another."""
        if self.store is None:
            yield from range(count)
            return
        for turn in itertools.count():
            key = f"{name}/team/{self.rank // self.width}/{turn}"
            if self.leads:
                number = self.store.add(f"{name}/next", 1) - 1
                if self.width > 1:
                    self.send(key, str(number))
            else:
                number = int(self.receive(key) or 0)
            if number >= count:
                return
            yield number

    def send(self, key: str, text: str) -> None:
        """Leave a text for another process."""
        self.store.set(key, text)

    def receive(self, key: str, wait: bool = True) -> str | None:
        """The text under a key. If there is none yet: wait for it, or without `wait` None. Raises
        InputError with the message of another process that failed."""
        while not self.store.check([key]):
            if self.store.check(["failed"]):
                raise InputError(self.store.get("failed").decode())
            if not wait:
                return None
            time.sleep(PAUSE)
        text: str = self.store.get(key).decode()
        return text

    def gather(self, text: str) -> list[str]:
        """In process 0 the texts of all other processes, in their order; it waits for them. In the
        others an empty list."""
        if self.rank:
            self.send(f"run/{self.rank}", text)
            return []
        return [self.receive(f"run/{other}") or "" for other in range(1, self.size)]


ALONE = World()


@contextmanager
def joined(width: int = 1) -> Iterator[World]:
    """The world of this process, in teams of `width`. If another process than 0 fails, nothing is
    raised there, and process 0 reports its error. Raises InputError for a width that does not
    divide the number of processes."""
    count = int(os.environ["WORLD_SIZE"]) if by_torchrun() else 1
    if width < 1 or count % width:
        how = "start minise by torchrun --nproc-per-node, and let the width divide the number"
        raise InputError(f"--tensor-parallel {width} with {count} processes is not possible; {how}")
    if not by_torchrun():
        yield ALONE
        return
    import torch
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    if cards := torch.cuda.device_count():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)  # the meaning of "cuda"
    # torchrun's agent keeps the store; after a restart of the processes the keys are new ones.
    store, rank, count = next(rendezvous("env://"))
    world = World(rank, count, store, width)
    try:
        if width > 1:
            from minise.loading.tensor_parallel import Share

            both = "cpu:gloo,cuda:nccl" if cards else "gloo"
            distributed.init_process_group(both, store=store, rank=rank, world_size=count)
            groups = []  # every process makes the groups of all teams, in the same order
            for first in range(0, count, width):
                groups.append(distributed.new_group(list(range(first, first + width))))
            world = replace(world, share=Share(rank % width, width, groups[rank // width]))
        yield world
        if width > 1:
            distributed.destroy_process_group()
    except distributed.DistError as error:
        if world.rank == 0:
            raise InputError(f"the other processes are gone ({one_line(error)})") from None
    except Exception as error:
        if world.rank == 0:
            raise
        if not (isinstance(error, InputError) or is_memory(error)):
            traceback.print_exc()
        world.send("failed", shorten(f"process {world.rank}: {one_line(error)}", 300))
