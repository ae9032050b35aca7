/* Kernels on torch's own threads: the OpenMP runtime that ATen was linked with, its team, its size.
 *
 * A second OpenMP runtime would keep its own spinning workers beside ATen's. Called through
 * GOMP_parallel, which libgomp, libomp and libiomp5 all export, we are one more parallel region.
 */
#include "_driver.h"

typedef struct {
    Kernel kernel;
    void *const *pointers;
    int64_t extent;
    int32_t status;
} Job;

static int64_t team_size(void)
{
    uint32_t n = 0;
    if (torch.num_threads_shim && torch.num_threads_shim(&n) == 0 && n > 0)
        return n;
    if (torch.num_threads)
        return torch.num_threads();
    return torch.omp_max_threads ? torch.omp_max_threads() : 1;
}

static void part(void *data)
{
    Job *job = data;
    int64_t n = torch.omp_num_threads(), t = torch.omp_thread_num();
    int64_t each = job->extent / n, more = job->extent % n;
    int64_t begin = t * each + (t < more ? t : more);
    int64_t end = begin + each + (t < more);
    int32_t status = begin < end ? job->kernel(job->pointers, begin, end) : 0;
    if (status)
        __atomic_fetch_or(&job->status, status, __ATOMIC_RELAXED);
}

int32_t run_kernel(Kernel kernel, void *const *pointers, int64_t extent, int64_t grain)
{
    if (extent <= 0)
        return 0;
    int64_t chunks = grain > 0 ? extent / grain : extent;
    if (chunks > 1 && torch.gomp_parallel && torch.omp_thread_num && torch.omp_num_threads &&
        !(torch.omp_in_parallel && torch.omp_in_parallel())) {
        int64_t n = team_size();
        n = n < chunks ? n : chunks;
        if (n > 1) {
            Job job = {kernel, pointers, extent, 0};
            torch.gomp_parallel(part, &job, (unsigned)n, 0);
            return job.status;
        }
    }
    return kernel(pointers, 0, extent);
}
