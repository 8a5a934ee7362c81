// The kernel of gru_body.h: the recurrence of one GRU layer.

#include "gru_ptx.h"

#include "gru_body.h"

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
persistent_gru(const Quad *weights, const float *bias, const half_bits *gates, const half_bits *x_in, half_bits *x_out,
               half_bits *slab, const int *read, const int *write, const int *rows, unsigned *workspace, int frames,
               int bucket, const char *ahead0, long ahead0_bytes, const char *ahead1, long ahead1_bytes, unsigned *error) {
    run(Arguments{weights, bias, gates, x_in, x_out, slab, read, write, rows, workspace, frames, bucket,
                  {ahead0, ahead1}, {ahead0_bytes, ahead1_bytes}});
    if (error != nullptr && threadIdx.x == 0 && load_flag(workspace) != 0u) store_flag(error, 1u);
}
