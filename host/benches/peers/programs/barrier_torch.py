"""Barriers of torch.distributed. Needs `pip install torch numpy`; only the processor is used.

`store`: a counter and a flag on a TCPStore, whose server is in the first process: the last to come sets the flag.
`gloo`: `dist.barrier()` of a group with the gloo backend.
"""

import multiprocessing
import os
import sys
from datetime import timedelta

import asked

TIMEOUT = timedelta(seconds=60)


def task(rank, size, port, questions, answers):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=TIMEOUT)
    ids = iter(range(1 << 60))

    def by_store():
        number = next(ids)
        if store.add(f"arrived {number}", 1) == size:
            store.set(f"all {number}", b"1")
        else:
            store.wait([f"all {number}"])

    meet = by_store
    if sys.argv[1] == "gloo":
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        meet = dist.barrier
    while True:
        answers.put(asked.rounds(meet, questions.get()))


if __name__ == "__main__":
    import torch  # noqa: F401  (to fail at once where it isn't installed)

    asked.answer_barriers(multiprocessing.get_context("spawn"), task)
