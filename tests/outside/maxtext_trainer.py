"""Runs MaxText's own trainer in this process and writes down what compiled and what was trained.

    maxtext_trainer.py RESULT.json base.yml key=value ...   (the trainer's own command line behind the first word)

The trainer is called as it is installed. Nothing here mentions Coldstart: where its address is set, JAX finds the hook
by itself. Compiles are counted beneath every cache, at the function where JAX enters the compiler; programs are
counted above them, by an event of JAX's own.
"""

import functools
import hashlib
import json
import sys
import time

import jax
import numpy as np
from jax._src import compiler


class Programs:
    """Every program that JAX wanted an executable for, in order, and whether the compiler was asked for it."""

    EVENT = "/jax/core/compile/backend_compile_duration"  # once a program, hit or not

    def __init__(self):
        self.seen = []
        self._compiles = []
        beneath = compiler.backend_compile_and_load

        @functools.wraps(beneath)
        def counted(*args, **kwargs):
            began = time.perf_counter()
            try:
                return beneath(*args, **kwargs)
            finally:
                self._compiles.append(time.perf_counter() - began)

        compiler.backend_compile_and_load = counted
        jax.monitoring.register_event_duration_secs_listener(self._passed)

    def _passed(self, event, seconds, **facts):
        if event == self.EVENT:
            self.seen.append(
                {
                    "name": facts.get("fun_name", "?"),
                    "compiles": len(self._compiles),
                    "compile_seconds": sum(self._compiles),
                    "seconds": seconds,
                }
            )
            self._compiles.clear()


def digests(state):
    """Of every shard of every trained array that lies in this process: where it is → digest of its bytes."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not isinstance(leaf, jax.Array) or jax.dtypes.issubdtype(
            leaf.dtype, jax.dtypes.prng_key
        ):
            continue
        for shard in leaf.addressable_shards:
            where = [
                [part.start or 0, length if part.stop is None else part.stop]
                for part, length in zip(shard.index, leaf.shape, strict=True)
            ]
            name = f"{jax.tree_util.keystr(path)} {where}"
            found[name] = hashlib.sha256(np.asarray(shard.data).tobytes()).hexdigest()
    return found


def main():
    began = time.perf_counter()
    result, arguments = sys.argv[1], sys.argv[2:]
    programs = Programs()
    from maxtext.trainers.pre_train import train

    trained = []
    loop = train.train_loop
    train.train_loop = lambda *args, **kwargs: trained.append(loop(*args, **kwargs))
    imported = time.perf_counter()
    train.main(["train.py", *arguments])
    ended = time.perf_counter()
    facts = {
        "jax": jax.__version__,
        "process": jax.process_index(),
        "devices": jax.device_count(),
        "programs": list(programs.seen),
        "state": digests(trained[0]),
        "seconds": {"import": imported - began, "train": ended - imported},
    }
    with open(result, "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
