// All-reduce through MPI, timed as trunkline bench does it: a barrier, then calls one right after the other.
// usage: mpi_allreduce BYTES ITERATIONS WARMUP; rank 0 prints the microseconds of each call of the slowest rank.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) {
    fprintf(stderr, "usage: mpi_allreduce BYTES ITERATIONS WARMUP\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long count = atol(argv[1]) / (long)sizeof(float), iterations = atol(argv[2]), warmup = atol(argv[3]);
  float* const in = malloc((size_t)count * sizeof *in);
  float* const out = malloc((size_t)count * sizeof *out);
  double* const own = malloc((size_t)iterations * sizeof *own);
  double* const all = malloc((size_t)(iterations * ranks) * sizeof *all);
  if (!in || !out || !own || !all) MPI_Abort(MPI_COMM_WORLD, 1);
  for (long i = 0; i < count; ++i) in[i] = (float)(i % 13 + rank), out[i] = 0;

  for (long i = 0; i < warmup; ++i) MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (long i = 0; i < iterations; ++i) {
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double end = MPI_Wtime();
    own[i] = (end - start) * 1e6;
    start = end;
  }
  for (long i = 0; i < count; ++i) {
    if (out[i] != (float)(i % 13 * ranks + ranks * (ranks - 1) / 2)) MPI_Abort(MPI_COMM_WORLD, 1);
  }

  MPI_Gather(own, (int)iterations, MPI_DOUBLE, all, (int)iterations, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    int slowest = 0;
    double most = -1;
    for (int r = 0; r < ranks; ++r) {
      double sum = 0;
      for (long i = 0; i < iterations; ++i) sum += all[r * iterations + i];
      if (sum > most) most = sum, slowest = r;
    }
    for (long i = 0; i < iterations; ++i) printf("%.3f\n", all[slowest * iterations + i]);
  }
  MPI_Finalize();
  return 0;
}
