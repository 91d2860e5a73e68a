"""Writes optimizers.csv: what torch.optim makes of the same gradients, for the tests of the optimizers to compare with.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.* && /tmp/venv/bin/python tests/reference/optimizers.py

Line by line: `initial,DTYPE,,,W W ...` and `gradient,DTYPE,,STEP,G G ...` are what goes in; `METHOD,DTYPE,NAME=NUMBER ...,STEP,W W ...`
is the value after that many steps. Numbers are written so that they read back as the same float. `clip-norm` is a number
of every method here: the gradients of a call scaled to a common norm, as tf.clip_by_global_norm does it.
"""

import math
import pathlib

import torch

STEPS = 20
SHOWN = (1, 2, 3, 5, 10, 20)
ADAM = {"learning-rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight-decay": 0.0}
CASES = [
    ("sgd", {"learning-rate": 0.1}),
    ("sgd", {"learning-rate": 0.01, "clip-norm": 0.5}),
    ("momentum", {"learning-rate": 0.01, "momentum": 0.9, "nesterov": 0}),
    ("momentum", {"learning-rate": 0.1, "momentum": 0.0, "nesterov": 0}),
    ("momentum", {"learning-rate": 0.01, "momentum": 0.9, "nesterov": 1}),
    ("momentum", {"learning-rate": 0.003, "momentum": 0.5, "nesterov": 1, "clip-norm": 1.0}),
    ("adagrad", {"learning-rate": 0.01, "decay": 0.0, "epsilon": 1e-10}),
    ("adagrad", {"learning-rate": 0.1, "decay": 0.05, "epsilon": 1e-6}),
    ("rmsprop", {"learning-rate": 0.01, "decay": 0.99, "epsilon": 1e-8}),
    ("rmsprop", {"learning-rate": 0.001, "decay": 0.9, "epsilon": 1e-3, "clip-norm": 1.0}),
    ("adam", ADAM),
    ("adam", ADAM | {"learning-rate": 0.1, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-4}),
    ("adam", ADAM | {"learning-rate": 0.01, "weight-decay": 0.1}),
    ("adam", ADAM | {"learning-rate": 0.01, "beta1": 0.0, "clip-norm": 1.0}),
    ("adamw", ADAM | {"weight-decay": 0.01}),
    ("adamw", ADAM | {"learning-rate": 0.05, "weight-decay": 0.3, "clip-norm": 0.1}),
]


def make(method, w, n):
    lr = n["learning-rate"]
    if method == "sgd":
        return torch.optim.SGD([w], lr=lr)
    if method == "momentum":
        # Torch refuses Nesterov's without momentum, which is plain descent.
        return torch.optim.SGD([w], lr=lr, momentum=n["momentum"], nesterov=bool(n["nesterov"]))
    if method == "adagrad":
        return torch.optim.Adagrad([w], lr=lr, lr_decay=n["decay"], eps=n["epsilon"])
    if method == "rmsprop":
        return torch.optim.RMSprop([w], lr=lr, alpha=n["decay"], eps=n["epsilon"])
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[method]
    return kind([w], lr=lr, betas=(n["beta1"], n["beta2"]), eps=n["epsilon"], weight_decay=n["weight-decay"])


def numbers(tensor):
    short = (lambda x: repr(float(x))) if tensor.dtype == torch.float64 else (lambda x: f"{float(x):.9g}")
    return " ".join(short(x) for x in tensor)


def main():
    torch.manual_seed(20)
    lines = []
    for name, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        initial = torch.tensor([1.0, -0.5, 0.25, 3.0, -100.0, 0.7, 0.001], dtype=dtype)
        # Elements of very different sizes, one that is always zero, one that is zero now and then.
        size = torch.tensor([1.0, 0.1, 1e-3, 0.0, 10.0, 1.0, 1e-6], dtype=dtype)
        gradients = torch.randn(STEPS, len(initial), dtype=dtype) * size
        gradients[::3, 5] = 0.0
        lines.append(f"initial,{name},,,{numbers(initial)}")
        lines += [f"gradient,{name},,{step},{numbers(g)}" for step, g in enumerate(gradients, 1)]
        for method, case in CASES:
            w = initial.clone().requires_grad_()
            optimizer = make(method, w, case)
            label = " ".join(f"{key}={value!r}" for key, value in case.items())
            for step, gradient in enumerate(gradients, 1):
                norm = math.sqrt(float((gradient.double() ** 2).sum()))
                clip = case.get("clip-norm", math.inf)
                w.grad = gradient * (clip / norm) if norm > clip else gradient.clone()
                optimizer.step()
                if step in SHOWN:
                    lines.append(f"{method},{name},{label},{step},{numbers(w.detach())}")
    path = pathlib.Path(__file__).with_suffix(".csv")
    head = f"# Made by optimizers.py with torch {torch.__version__.split('+')[0]}.\n"
    path.write_text(head + "\n".join(lines) + "\n")


main()
