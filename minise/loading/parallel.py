"""Many processes that torchrun started: which one answers what, and how process 0 gets the answers.

They share torch's key-value store and nothing else: a counter deals out the questions, and an
answer is a line of text under a key. Process 0 alone prints messages and writes files.

No wait is without end. Each process counts up a key of its own in a thread, also while the model
runs: a long question is no dead process. Who waits looks at the counts of those it waits for.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from minise.errors import (
    InputError,
    by_torchrun,
    is_memory,
    one_line,
    printable,
    shorten,
    torchrun_problem,
)

if TYPE_CHECKING:
    from minise.loading.tensor_parallel import Share

PAUSE = 0.01  # seconds between two looks at the store
SILENCE = 300.0  # seconds without a sign of life after which a process is taken for dead
LOOKS = 10  # at a process in that time. They are counted and no clock is read: a stopped machine's
# clock may go on, and then all processes would seem dead.


class Unheard(InputError):
    """A process gave no sign of life."""

    def __init__(self, process: int) -> None:
        self.process = process
        super().__init__(
            f"process {process} has given no sign of life for {SILENCE:g} s; see why, and start "
            "all processes again"
        )


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

    @property
    def others(self) -> list[int]:
        """The ranks of all processes but this one."""
        return [other for other in range(self.size) if other != self.rank]

    def claim(self, name: str, count: int) -> Iterator[int]:
        """Some of the numbers 0 ... count - 1: each goes to one team, the first that is free. So a
        slow team gets fewer, and no team waits for another."""
        if self.store is None:
            yield from range(count)
            return
        leader = self.rank - self.rank % self.width
        for turn in itertools.count():
            key = f"{name}/team/{self.rank // self.width}/{turn}"
            if self.leads:
                number = self._ask("add", f"{name}/next", 1) - 1
                if self.width > 1:
                    self.send(key, str(number))
            else:
                number = int(self.receive(key, [leader]))
            if number >= count:
                return
            yield number

    def send(self, key: str, text: str) -> None:
        """Leave a text for another process."""
        self._ask("set", key, text)

    def fail(self, message: str) -> bool:
        """Tell the others that this process failed, unless another one did before. Whether they
        can read it."""
        with suppress(InputError):
            self._ask("compare_set", "failed", "", message)
            return True
        return False

    def received(self, key: str) -> str | None:
        """The text under a key; None if there is none yet. Raises InputError with the message of a
        process that failed."""
        if self._ask("check", [key]):
            text: str = self._ask("get", key).decode()
            return text
        if self._ask("check", ["failed"]):
            raise InputError(self._ask("get", "failed").decode())
        return None

    def receive(self, key: str, senders: Sequence[int]) -> str:
        """The text under a key, which one of the `senders` (ranks) sends; waits for it. Raises
        InputError with the message of a process that failed, and for a sender without a sign of
        life."""
        signs = dict[int, tuple[str, int]]()  # of each sender the last, and the looks since then
        turns = max(1, round(SILENCE / LOOKS / PAUSE))
        for turn in itertools.count():
            if (text := self.received(key)) is not None:
                return text
            if turn % turns == 0:
                self._look(senders, signs)
            time.sleep(PAUSE)
        raise AssertionError("the loop has no end")

    def _look(self, senders: Sequence[int], signs: dict[int, tuple[str, int]]) -> None:
        """Note the signs of life of the senders. Raises InputError for one that is late: it gives
        none and has not ended, or all of them have ended."""
        late = []
        for sender in senders:
            sign = "ended" if self._ask("check", [f"ended/{sender}"]) else self._beat_of(sender)
            last, looks = signs.get(sender, (sign, -1))
            signs[sender] = (sign, looks + 1 if sign == last else 0)
            if signs[sender][1] >= LOOKS:
                late.append(sender)
        gone = [sender for sender in late if signs[sender][0] != "ended"]
        if gone or len(late) == len(senders):
            raise Unheard((gone or late)[0])

    def _beat_of(self, process: int) -> str:
        key = f"beat/{process}"
        text: str = self._ask("get", key).decode() if self._ask("check", [key]) else ""
        return text

    def gather(self, text: str) -> list[str]:
        """In process 0 the texts of all other processes, in their order; it waits for them. In the
        others an empty list."""
        if self.rank:
            self.send(f"run/{self.rank}", text)
            return []
        return [self.receive(f"run/{other}", [other]) for other in self.others]

    def _ask(self, call: str, *arguments: Any) -> Any:
        """What a call of the store returns. Raises InputError if the store is gone. It is called in
        a thread of its own: torch waits without end for a store that is stopped, or whose machine
        lost its power."""
        reply = concurrent.futures.Future[Any]()

        def ask() -> None:
            try:
                reply.set_result(getattr(self.store, call)(*arguments))
            except BaseException as error:
                reply.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            return reply.result(SILENCE)
        except concurrent.futures.TimeoutError:
            reason = f"no answer for {SILENCE:g} s"
        except RuntimeError as error:
            reason = one_line(error)
        how = "see whether torchrun runs, and start all processes again"
        raise InputError(f"the store that the processes share is gone ({reason}); {how}")


ALONE = World()


@contextmanager
def joined(width: int = 1) -> Iterator[World]:
    """The world of this process, in teams of `width`. If another process than 0 fails, nothing is
    raised there, and process 0 reports its error. If process 0 cannot be told, this process says it
    and exits with status 2. Raises InputError for a width that does not divide the number of
    processes, and for variables of torchrun that are missing or damaged."""
    if problem := torchrun_problem():
        raise InputError(f"{problem}; start minise by torchrun, or unset TORCHELASTIC_RUN_ID")
    count = int(os.environ["WORLD_SIZE"]) if by_torchrun() else 1
    if width < 1 or count % width:
        how = "start minise by torchrun --nproc-per-node, and let the width divide the number"
        raise InputError(f"--tensor-parallel {width} with {count} processes is not possible; {how}")
    if not by_torchrun():
        yield ALONE
        return
    world = World(int(os.environ["RANK"]), count, width=width)
    try:
        world = replace(world, store=_store())
        with _beating(world):
            with _teams(world) as with_share:
                yield with_share
            if world.rank == 0:  # it may keep the store, so it ends last
                with suppress(InputError):
                    for other in world.others:
                        world.receive(f"ended/{other}", [other])
    except Exception as error:
        message = shorten(f"process {world.rank}: {one_line(error)}", 300)
        told = world.store is not None and world.fail(message)
        if world.rank == 0:
            raise
        if not (isinstance(error, InputError) or is_memory(error)):
            traceback.print_exc()
        if not told or (isinstance(error, Unheard) and error.process == 0):
            print(f"minise: {printable(message)}", file=sys.stderr, flush=True)
            sys.exit(2)


def _store() -> Any:
    """The key-value store, which torchrun's agent or process 0 keeps. After a restart of the
    processes the keys are new ones."""
    from torch.distributed.rendezvous import rendezvous

    try:
        return next(rendezvous("env://", timeout=timedelta(seconds=SILENCE)))[0]
    except (RuntimeError, ValueError, LookupError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = f"the processes do not meet at {shorten(where, 60)} ({one_line(error)})"
        raise InputError(f"{reason}; start all of them by torchrun") from None


@contextmanager
def _beating(world: World) -> Iterator[None]:
    """Give signs of life meanwhile. Without an error, also the sign of an end."""
    over = threading.Event()

    def beat() -> None:
        with suppress(InputError):  # the store is gone: the process sees it where it needs it
            for number in itertools.count(1):
                if over.wait(SILENCE / LOOKS / 2):
                    return
                world.send(f"beat/{world.rank}", str(number))

    # The first one now: while torch waits in the store for another process, which may wait for this
    # sign, no other thread can use the store.
    world.send(f"beat/{world.rank}", "0")
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
        world.send(f"ended/{world.rank}", "")
    finally:
        over.set()


@contextmanager
def _teams(world: World) -> Iterator[World]:
    """The world with the share of this process, where teams share a model."""
    import torch
    from torch import distributed

    if cards := torch.cuda.device_count():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)  # the meaning of "cuda"
    if world.width == 1:
        yield world
        return
    from minise.loading.tensor_parallel import Share

    for other in world.others:  # torch would wait for each of them much longer
        world.receive(f"beat/{other}", [other])
    both = "cpu:gloo,cuda:nccl" if cards else "gloo"
    rank, width = world.rank, world.width
    try:
        distributed.init_process_group(both, store=world.store, rank=rank, world_size=world.size)
        groups = []  # every process makes the groups of all teams, in the same order
        for first in range(0, world.size, width):
            groups.append(distributed.new_group(list(range(first, first + width))))
        yield replace(world, share=Share(rank % width, width, groups[rank // width]))
        distributed.destroy_process_group()
    except RuntimeError as error:
        if not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
            raise
        reason = f"the other processes of the team are gone ({one_line(error)})"
        raise InputError(f"{reason}; start all processes again") from None
