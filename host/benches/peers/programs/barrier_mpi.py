"""`MPI_Barrier`. Needs Open MPI (Debian: `openmpi-bin libopenmpi-dev`) and `pip install mpi4py`.

Started once for a question, since waiting processes of MPI use a core each: `mpirun -n TASKS python barrier_mpi.py ROUNDS`.
"""

import sys

from mpi4py import MPI

import asked

world = MPI.COMM_WORLD
samples = world.gather(asked.rounds(world.Barrier, int(sys.argv[1])), 0)
if world.rank == 0:
    print(f"answer {asked.median([sample for each in samples for sample in each]) * 1e6:.2f}", flush=True)
