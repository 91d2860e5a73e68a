"""Push and pull with TensorFlow's own servers. Needs `pip install tensorflow-cpu==2.15.1` (Python 3.11).

A server of job `ps` in a process of its own; the worker's server and the session are in this one, as with between-graph
replication. A push is `assign_add` of a gradient that lies on the worker, to a variable on ps; a pull brings the variable to
the worker, not into Python.
"""

import multiprocessing
import os
import time

import asked

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def server(cluster, job):
    import tensorflow as tf

    return tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=0, protocol="grpc")


def ps(cluster):
    kept = server(cluster, "ps")
    while kept:
        time.sleep(60)


def main():
    import tensorflow as tf

    ps_port, worker_port = asked.free_ports(2)
    cluster = {"ps": [f"127.0.0.1:{ps_port}"], "worker": [f"127.0.0.1:{worker_port}"]}
    process = multiprocessing.get_context("spawn").Process(target=ps, args=(cluster,), daemon=True)
    process.start()
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    worker = server(cluster, "worker")
    config = v1.ConfigProto()
    # Grappler would fold away what is measured.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    calls = {}

    # Sessions share what a server holds by its name, so names tell the size.
    def build(size):
        graph = v1.Graph()
        with graph.as_default():
            with v1.device("/job:ps/task:0"):
                variable = v1.get_variable(
                    f"variable{size}", [size // 4], tf.float32, initializer=v1.zeros_initializer(), use_resource=True
                )
            with v1.device("/job:worker/task:0"):
                gradient = v1.get_variable(
                    f"gradient{size}", [size // 4], tf.float32, initializer=v1.ones_initializer(), use_resource=True
                )
                value = v1.identity(gradient.read_value())
                pull = v1.identity(variable.read_value())
            with v1.device("/job:ps/task:0"):
                push = variable.assign_add(value, read_value=False)
            initialize = v1.global_variables_initializer()
        session = v1.Session(worker.target, graph=graph, config=config)
        session.run(initialize)
        calls["push", size] = session.make_callable(push)
        calls["pull", size] = session.make_callable(pull.op)

    def answer(what, size, bound):
        if (what, size) not in calls:
            build(size)
        return asked.timed(calls[what, size], bound)

    asked.answer_all(answer, [process])


if __name__ == "__main__":
    main()
