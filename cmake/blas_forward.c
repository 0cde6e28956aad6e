/* libmlx binds BLAS and LAPACK routines by their plain names; PyPI's scipy-openblas32 has them under the prefix scipy_.
   Each routine here jumps to its namesake with all arguments untouched, so no signature is repeated. */
#if defined(__x86_64__)
#define JUMP(target) "jmp " target "@PLT"
#elif defined(__aarch64__)
#define JUMP(target) "b " target
#else
#error "no forwarding for this processor: write its jump instruction here"
#endif

#define FORWARD(name)                                                          \
  __asm__(".text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n\t" \
          JUMP("scipy_" #name) "\n.size " #name ", .-" #name "\n");

FORWARD(cblas_sgemm)
FORWARD(cblas_dgemm)
FORWARD(cblas_cgemm)
FORWARD(cgeev_)
FORWARD(cgesdd_)
FORWARD(cheevd_)
FORWARD(dgeev_)
FORWARD(dgeqrf_)
FORWARD(dgesdd_)
FORWARD(dgetrf_)
FORWARD(dgetri_)
FORWARD(dorgqr_)
FORWARD(dpotrf_)
FORWARD(dsyevd_)
FORWARD(dtrtri_)
FORWARD(sgeev_)
FORWARD(sgeqrf_)
FORWARD(sgesdd_)
FORWARD(sgetrf_)
FORWARD(sgetri_)
FORWARD(sorgqr_)
FORWARD(spotrf_)
FORWARD(ssyevd_)
FORWARD(strtri_)
