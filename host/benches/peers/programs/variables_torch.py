"""Push and pull with PyTorch. Needs `pip install torch numpy`; only the processor is used.

`rpc`: torch.distributed.rpc, with TensorPipe held to TCP. A push adds the tensor that it got, a pull gives the whole tensor.
`gloo`: the same by plain send and receive, into buffers that stay; an answer of 4 bytes ends a push.
"""

import multiprocessing
import os
import sys

import asked

PUSH, PULL, SIZE = 1.0, 2.0, 3.0
VARIABLES = {}


def make(size):
    import torch

    VARIABLES[size] = torch.zeros(size // 4)


def add(size, value):
    VARIABLES[size].add_(value)


def read(size):
    return VARIABLES[size]


def join_rpc(rank, port):
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4,
        init_method=f"tcp://127.0.0.1:{port}",
        rpc_timeout=60,
        _transports=["uv"],
        _channels=["basic"],
    )
    rpc.init_rpc(f"task{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    return rpc


def join_gloo(rank, port):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    return dist


def ps(kind, port):
    prepare()
    if kind == "rpc":
        join_rpc(0, port).shutdown()
        return
    import torch

    dist = join_gloo(0, port)
    request, variable, value = torch.zeros(2), None, None
    while True:
        dist.recv(request, 1)
        if request[0] == PUSH:
            dist.recv(value, 1)
            variable.add_(value)
            dist.send(request, 1)
        elif request[0] == PULL:
            dist.send(variable, 1)
        else:
            variable, value = torch.zeros(int(request[1]) * 1024), torch.zeros(int(request[1]) * 1024)


def prepare():
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    import torch

    torch.set_num_threads(1)


def main(kind):
    prepare()
    import torch

    port = asked.free_ports(1)[0]
    process = multiprocessing.get_context("spawn").Process(target=ps, args=(kind, port), daemon=True)
    process.start()
    values = {}
    if kind == "rpc":
        rpc = join_rpc(1, port)

        def calls(size):
            if size not in values:
                values[size] = torch.ones(size // 4)
                rpc.rpc_sync("task0", make, (size,))
            value = values[size]
            return {
                "push": lambda: rpc.rpc_sync("task0", add, (size, value)),
                "pull": lambda: rpc.rpc_sync("task0", read, (size,)),
            }

    else:
        dist = join_gloo(1, port)
        answered = torch.zeros(2)

        def calls(size):
            # In units of 4 KiB, which f32 counts without loss.
            dist.send(torch.tensor([SIZE, size // 4096]), 0)
            value = values.setdefault(size, torch.ones(size // 4))
            push_request, pull_request = torch.tensor([PUSH, 0]), torch.tensor([PULL, 0])

            def push():
                dist.send(push_request, 0)
                dist.send(value, 0)
                dist.recv(answered, 0)

            def pull():
                dist.send(pull_request, 0)
                dist.recv(value, 0)

            return {"push": push, "pull": pull}

    asked.answer_all(lambda what, size, bound: asked.timed(calls(size)[what], bound), [process])


if __name__ == "__main__":
    main(sys.argv[1])
