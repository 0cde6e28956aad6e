"""All-reduce through MLX's ring, timed as trunkline bench does it: a barrier, then calls one right after the other.

usage: mlx_allreduce.py BYTES ITERATIONS WARMUP, with MLX_RANK and MLX_HOSTFILE; rank 0 prints the microseconds of each
call of the slowest rank.
"""

import sys
import time

import mlx.core as mx

size, iterations, warmup = map(int, sys.argv[1:])
mx.set_default_device(mx.cpu)
group = mx.distributed.init(strict=True, backend="ring")
rank, ranks = group.rank(), group.size()
data = (mx.arange(size // 4) % 13 + rank).astype(mx.float32)
mx.eval(data)


def call(value):
    result = mx.distributed.all_sum(value, group=group)
    mx.eval(result)
    return result


for _ in range(warmup):
    result = call(data)
call(mx.array(1.0))  # a barrier
samples = []
start = time.perf_counter()
for _ in range(iterations):
    result = call(data)
    end = time.perf_counter()
    samples.append((end - start) * 1e6)
    start = end

expected = ((mx.arange(size // 4) % 13) * ranks + ranks * (ranks - 1) // 2).astype(mx.float32)
if not mx.array_equal(result, expected):
    sys.exit(f"rank {rank}: wrong sums")
everybody = mx.distributed.all_gather(mx.array(samples)[None], group=group)
slowest = everybody[mx.argmax(everybody.sum(axis=1)).item()]
if rank == 0:
    print("\n".join(f"{sample:.3f}" for sample in slowest.tolist()))
