"""What all programs here share: questions come by the standard input, one a line, and each is answered by a line.

A question is three words, `push BYTES SECONDS`, `pull BYTES SECONDS` or `barrier TASKS ROUNDS`; the answer is `answer MICROSECONDS`,
the median of one call. What a library prints besides is overlooked. The end of the input ends the program.
"""

import os
import socket
import sys
import time

WARM_UP = 3
SAMPLES_MIN = 5
ROUNDS_WARM_UP = 50


def free_ports(count):
    """Ports of loopback that nobody listens on; all are bound until the last is known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def median(samples):
    return sorted(samples)[len(samples) // 2]


def timed(call, seconds):
    """The median time of a call, in seconds: as many as fit, after some that fill caches."""
    for _ in range(WARM_UP):
        call()
    samples, until = [], time.perf_counter() + seconds
    while len(samples) < SAMPLES_MIN or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return median(samples)


def rounds(meet, count):
    """Times of so many rounds of a barrier, in seconds."""
    for _ in range(ROUNDS_WARM_UP):
        meet()
    samples = []
    for _ in range(count):
        started = time.perf_counter()
        meet()
        samples.append(time.perf_counter() - started)
    return samples


def answer_all(answer, processes=()):
    """Answers every question with `answer(what, size, bound)`, in seconds; then ends `processes` and this program."""
    for line in sys.stdin:
        what, size, bound = line.split()
        print(f"answer {answer(what, int(size), float(bound)) * 1e6:.2f}", flush=True)
    for process in processes:
        process.kill()
    # Some libraries wait for others when they end.
    os._exit(0)


class Tasks:
    """Processes that meet at a barrier: `size` of them, each running `task(rank, size, port, questions, answers)`."""

    def __init__(self, context, task, size):
        self.answers = context.Queue()
        self.questions = [context.Queue() for _ in range(size)]
        port = free_ports(1)[0]
        self.processes = [
            context.Process(target=task, args=(rank, size, port, questions, self.answers))
            for rank, questions in enumerate(self.questions)
        ]
        for process in self.processes:
            process.start()

    def meet(self, count):
        """The median over all tasks and `count` rounds, in seconds."""
        for questions in self.questions:
            questions.put(count)
        return median([sample for _ in self.processes for sample in self.answers.get(timeout=100)])

    def end(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def answer_barriers(context, task):
    """Answers questions about a barrier. The tasks of a size stay, and wait where nothing is asked of them."""
    running = {}

    def answer(_what, size, bound):
        if size not in running:
            running[size] = Tasks(context, task, size)
        return running[size].meet(int(bound))

    class Running:
        @staticmethod
        def kill():
            for tasks in running.values():
                tasks.end()

    answer_all(answer, [Running])
