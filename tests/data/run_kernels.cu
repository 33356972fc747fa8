// The kernels of tests/test_run_*.py and tests/gpu/test_run_command.py. run_kernels.ptx and
// run_kernels.cubin are made of this file by nvcc and ptxas 13.0.88:
//
//   nvcc -arch=sm_90 -ptx run_kernels.cu -o run_kernels.ptx
//   ptxas -arch=sm_90 run_kernels.ptx -o run_kernels.cubin
#include <cuda_bf16.h>

// One rounding, so that a GPU and the simulator agree bit for bit.
extern "C" __global__ void __launch_bounds__(256) axpy(float *y, const float *x, float a, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) y[at] = fmaf(a, x[at], y[at]);
}

struct Window {
  long long start;
  int length;
  float factor;
};

// A struct by value, 16-bit floats, a block that is demanded, shared memory of the launch.
template <typename T>
__global__ void __block_size__((64, 1, 1)) reverse(T *out, const T *in, Window window) {
  extern __shared__ char bytes[];
  T *tile = reinterpret_cast<T *>(bytes);
  int at = threadIdx.x;
  if (at < window.length) tile[at] = in[window.start + at];
  __syncthreads();
  if (at < window.length) out[at] = T(float(tile[window.length - 1 - at]) * window.factor);
}

template __global__ void reverse<__nv_bfloat16>(__nv_bfloat16 *, const __nv_bfloat16 *, Window);
