"""The barrier of JAX's coordination service. Needs `pip install jax jaxlib`; no accelerator is used.

The first process has the service, as in a real job. Every round has an id of its own: an id is good for one round.
"""

import multiprocessing
import os

import asked

TIMEOUT_MS = 60_000


def task(rank, size, port, questions, answers):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax._src import distributed

    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank, initialization_timeout=60)
    client = distributed.global_state.client
    ids = iter(range(1 << 60))
    while True:
        count = questions.get()
        answers.put(asked.rounds(lambda: client.wait_at_barrier(f"round {next(ids)}", TIMEOUT_MS), count))


if __name__ == "__main__":
    import jax  # noqa: F401  (to fail at once where it isn't installed)

    asked.answer_barriers(multiprocessing.get_context("spawn"), task)
